"""What a table must hold at any offset of the ledger, however far behind the outputs and the model are from each other.

A simulated log of output records is written, judged and landed in an order that a seed decides; after each step every row, every
count and every sum is compared with what the records below the ledger's offsets say, from the beginning.
"""

import random
from collections.abc import Iterator
from decimal import Decimal
from itertools import product
from typing import Any, cast

import pytest

from onefold.verify.audit.tables import Tables
from onefold.verify.audit.versions import RowVersion, Versions
from onefold.verify.expect import Table
from onefold.verify.matching import told_of
from onefold.verify.outputs import LastOutput
from onefold.verify.record import Source
from onefold.verify.tables import Wanted
from onefold.workloads import bank
from onefold.workloads.trades import CURRENT, RISK, TOPIC, WORKLOAD

pytestmark = pytest.mark.promise("audit-of-any-offset")

PARTITIONS = 2
TRADES = 12
STEPS = 400
LEAVES = [("PV", "EMEA", "Rates"), ("PV", "APAC", "Rates"), ("Vega", "EMEA", "Swaps")]
NAMES = ("trade_id", "version", "value", "risk_type", "region", "trade_desk", "traded_at")


class History:
    """A log of trades, and what the parts of the auditor know of it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rows: dict[str, dict[Any, Any]] = {CURRENT.name: {}, RISK.name: {}}
        self.last: dict[Any, LastOutput] = {}
        self.log: list[list[tuple[Any, tuple[Any, ...]]]] = [[] for _ in range(PARTITIONS)]
        self.unjudged: list[tuple[Any, LastOutput, RowVersion, tuple[Any, ...]]] = []
        self.landed = dict.fromkeys(((CURRENT.topic, number) for number in range(PARTITIONS)), 0)
        for _ in range(TRADES):  # what was there when it began
            self._apply(*self._written(self._next()))
        self.landed = {place: len(self.log[place[1]]) for place in self.landed}
        self.versions = Versions(WORKLOAD, self.rows, {CURRENT.name: self.last})

    def _next(self) -> dict[str, Any]:
        trade = f"t{self.rng.randrange(TRADES)}"
        number = sum(len(part) for part in self.log) + 1
        leaf = self.rng.choice(LEAVES)
        return dict(zip(NAMES, (trade, number, self.rng.randrange(10**6), *leaf, 10**6 * number), strict=True))

    def _written(self, fields: dict[str, Any]) -> tuple[Any, LastOutput, tuple[Any, ...]]:
        key = (fields["trade_id"],)
        partition = int(fields["trade_id"][1:]) % PARTITIONS
        written = LastOutput(partition, len(self.log[partition]), Source(TOPIC, partition, fields["version"]))
        row = told_of(CURRENT)({"messages": 1, **fields})
        self.log[partition].append((key, row))
        self.before = self.last.get(key)
        self.last[key] = written
        return key, written, row

    def _apply(self, key: Any, written: LastOutput, row: tuple[Any, ...]) -> None:
        self.rows[CURRENT.name][key] = row, written.source

    def write(self) -> None:
        fields = self._next()
        key, written, row = self._written(fields)
        version = self.versions.wrote(CURRENT, key, fields, written, self.before)
        self.unjudged.append((key, written, version, row))

    def judge(self) -> None:
        if self.unjudged:
            key, written, version, row = self.unjudged.pop(0)
            self._apply(key, written, row)
            self.versions.judge(CURRENT, key, version, row)

    def land(self) -> None:
        topic, partition = place = self.rng.choice(list(self.landed))
        self.landed[place] = self.rng.randint(self.landed[place], len(self.log[partition]))
        self.versions.land({**self.landed, (f"{topic}.other", 0): 7})

    def table(self) -> dict[Any, tuple[tuple[Any, ...], int, int]]:
        """The rows as of the ledger."""
        return {
            key: (row, place[1], offset)
            for place, end in self.landed.items()
            for offset, (key, row) in enumerate(self.log[place[1]][:end])
        }


def in_table(wanted: Wanted | None) -> Any:
    values, written, _ = wanted or (None, None, None)
    return written and (values, written.partition, written.offset)


@pytest.mark.parametrize("seed", range(8))
def test_rows_counts_and_sums_are_those_below_the_ledgers_offsets(seed: int) -> None:
    history = History(seed)
    versions = history.versions
    for _ in range(STEPS):
        history.rng.choice([history.write, history.judge, history.land])()
        table = history.table()
        keys = {(f"t{number}",) for number in range(TRADES)}
        assert {key: in_table(versions.wanted(CURRENT, key)) for key in keys} == {key: table.get(key) for key in keys}
        assert versions.counts[CURRENT.name] == len(table)
        assert set(versions.keys(CURRENT)) == table.keys()
        assert {key: row[3:] for key, row in versions.sums[0].wanted().items() if any(row[3:])} == added(table)
    while history.unjudged:
        history.judge()
    history.landed = {place: len(history.log[place[1]]) for place in history.landed}
    versions.land(history.landed)
    assert versions.kept == 0, "what has landed and was judged is the model's"


def added(table: dict[Any, tuple[tuple[Any, ...], int, int]]) -> dict[Any, tuple[Decimal, int]]:
    """The sums of a table, added up anew."""
    found: dict[Any, tuple[Decimal, int]] = {}
    for row, _, _ in table.values():
        for key in product(*((name, None) for name in row[3:6])):
            value, trades = found.get(key, (Decimal(0), 0))
            found[key] = value + row[2], trades + 1
    return found


def test_a_record_that_the_model_knows_nothing_of_demands_no_row() -> None:
    """One that the processor has made up, before the audit began."""
    history = History(1)
    made_up = ("t-made-up",)
    history.last[made_up] = LastOutput(0, 99, Source(TOPIC, 0, 99))
    assert history.versions.wanted(CURRENT, made_up) is None
    assert set(history.versions.keys(CURRENT)) == history.last.keys() - {made_up}


def test_a_row_that_is_gathered_has_the_rows_that_were_there_and_each_that_lands() -> None:
    def entry(number: int, balance: int) -> tuple[Any, ...]:
        return 1, number, "deposit", 2, number, 1, Decimal(5), Decimal(balance), Decimal(0), False

    entries, _, accounts, _ = bank.WORKLOAD.tables
    rows: dict[str, dict[Any, Any]] = {table.name: {} for table in bank.WORKLOAD.tables}
    last: dict[str, dict[Any, LastOutput]] = {topic: {} for topic in bank.WORKLOAD.outputs}
    rows[entries.name][1, 1] = entry(1, 5), Source("bank.deposits", 0, 0)
    last[entries.name][1, 1] = LastOutput(0, 0, Source("bank.deposits", 0, 0))
    versions = Versions(bank.WORKLOAD, rows, last)
    assert versions.wanted(accounts, (1,)) == ((1, 1, Decimal(5), Decimal(0), False), None, None)
    assert versions.wanted(accounts, (2,)) is None

    written = LastOutput(0, 1, Source("bank.deposits", 0, 1))
    version = versions.wrote(entries, (1, 2), {}, written, None)
    versions.judge(entries, (1, 2), version, entry(2, 10))
    assert versions.wanted(accounts, (1,)) == ((1, 1, Decimal(5), Decimal(0), False), None, None)
    versions.land({(entries.topic, 0): 2})
    assert versions.wanted(accounts, (1,)) == ((1, 2, Decimal(10), Decimal(0), False), None, None)
    assert [*versions.keys(accounts)] == [(1,)]


def test_a_sum_that_stays_wrong_is_one_finding_wherever_its_row_comes_from() -> None:
    """Or those of one row would soon be all that is kept, and nothing else were named."""
    history = History(1)
    [added], tables = history.versions.sums, Tables(WORKLOAD, history.versions)

    class Shown:
        def __init__(self, offset: int) -> None:
            self.origin = RISK.topic, 0, offset

        def rows(self, name: str, columns: tuple[str, ...]) -> Any:
            for number, (_, (*key, value, trades)) in enumerate(sorted(added.wanted().items(), key=repr)):
                yield (*key, value + (not number), trades, *self.origin)

        def doubled(self, table: Table) -> Iterator[tuple[Any, ...]]:
            return iter(())

    first, later = (list(tables._sums(added, cast("Any", Shown(offset)))) for offset in (5, 9))
    assert [found.kind for found in first] == ["different row"]
    assert first == later
    assert tables.rows == 2 * len(added.wanted()), "each compared twice"
