"""What the shares of a log have come to, and what they come to together."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from onefold.proof.expect import Expected, Table, Workload, match_late_originals
from onefold.proof.fates import Counts
from onefold.proof.fed import Fed
from onefold.proof.models import Model
from onefold.proof.outputs import Outputs, Taken
from onefold.proof.record import Source
from onefold.proof.summed import Sums
from onefold.proof.verdict import Check

# Kinds of columns whose sums are the same in any order: others may have more digits than a sum keeps.
_EXACT = {"int", "long", "millionths"}

#: Of a table, as `expect.Model` has them.
Rows = dict[tuple[Any, ...], tuple[tuple[Any, ...], Source]]


def shares(work: Workload, partitions: Collection[int], most: int) -> int:
    """How many shares a log may be divided into, so that a row, what it was written by and its inputs are in one of them, and
    what goes over all of them are sums of whole numbers, or of millionths. 1, where that is not so, or not known.

    Args:
        partitions: of each topic.
        most: as many at most.
    """
    names = {table.name for table in work.tables}
    if not work.apart or work.fed or work.queues or work.made or any(view.table not in names for view in work.views):
        return 1
    if not all(_adds_up(table) for table in work.tables if table.summed):
        return 1
    return max(share for share in range(1, most + 1) if all(number % share == 0 for number in partitions))


def _adds_up(table: Table) -> bool:
    """Is there nothing in its rows but keys, and amounts whose sum is the same in any order?"""
    if not isinstance(table.sums, Sums):
        return False
    amounts = {name for name, _ in table.sums.amounts}
    return all(
        column.name in table.key or (column.name in amounts and column.kind in _EXACT) for column in table.columns
    )


@dataclass(frozen=True)
class Part:
    """What one share has come to. Its rows are compared already, and stay where they are: there are too many to hand on.

    Attributes:
        expected: without rows.
        outputs: what was written.
        right: nothing was wrong with what belongs to this share alone.
        checks: of the tables and views whose rows are in one share each.
        sums: the rows of the others, by table: what this share adds to them.
        counted: what the processor has counted here, by fate.
    """

    expected: Expected
    outputs: Taken
    right: bool
    checks: list[Check]
    sums: dict[str, Rows]
    counted: Counter[str]


def together(work: Workload, parts: Sequence[Part]) -> tuple[Expected, Outputs]:
    """What must exist, and what was written; the only rows are those of tables of sums."""
    rows = {
        table.name: added(table, [part.sums[table.name] for part in parts]) for table in work.tables if table.summed
    }
    expected = Expected(
        cast(Model, _Rows(rows)), _counted(part.expected.counts for part in parts), fed=Fed(work.queues)
    )
    outputs = Outputs(work)
    for part in parts:
        expected.dead |= part.expected.dead
        expected.uncopied |= part.expected.uncopied
        expected.unsent += part.expected.unsent
        expected.unsigned += part.expected.unsigned
        expected.copied |= part.expected.copied
        expected.fates |= part.expected.fates
        expected.mistimed += part.expected.mistimed
        outputs.add(part.outputs)
    match_late_originals(expected)
    return expected, outputs


def checks(work: Workload, parts: Sequence[Part], sums: Iterable[Check]) -> list[Check]:
    """Of all tables and views, in their order.

    Args:
        sums: of the tables of sums.
    """
    expected, found = Counter[str](), Counter[str]()
    for check in [*(check for part in parts for check in part.checks), *sums]:
        expected[check.what] += check.expected
        found[check.what] += check.found
    names = [*(table.name for table in work.tables), *(view.name for view in work.views)]
    return [Check(name, expected[name], found[name]) for name in names]


def added(table: Table, several: Iterable[Mapping[tuple[Any, ...], tuple[tuple[Any, ...], Source]]]) -> Rows:
    """The rows of a table of sums over all shares, from what each of them adds to it."""
    amounts = {name for name, _ in cast(Sums, table.sums).amounts}
    is_amount = [column.name in amounts for column in table.columns]
    rows: Rows = {}
    for one in several:
        for key, (values, source) in one.items():
            if key in rows:
                before, latest = rows[key]
                summed = [a + b if adds else b for adds, a, b in zip(is_amount, before, values, strict=True)]
                rows[key] = tuple(summed), max(latest, source)
            else:
                rows[key] = values, source
    return rows


def counted(several: Iterable[Counter[str]]) -> Counter[str]:
    """What the processor has counted, of all shares."""
    total = Counter[str]()
    for one in several:
        total.update(one)
    return total


def without_rows(expected: Expected) -> Expected:
    """The rest of it."""
    return replace(expected, model=cast(Model, _Rows({})))


def _counted(several: Iterable[Counts]) -> Counts:
    total = Counts()
    for counts in several:
        for one in fields(Counts):
            setattr(total, one.name, getattr(total, one.name) + getattr(counts, one.name))
    return total


@dataclass(frozen=True)
class _Rows:
    """The part of an `expect.Model` that comparing needs."""

    rows: dict[str, Rows]
