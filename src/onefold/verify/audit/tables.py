"""Compare the rows of a snapshot with the expected rows at the offsets of the ledger in the snapshot.

The first look compares all rows. A later look compares the rows written since the last look, by any program, and the rows that
should have been written. PostgreSQL finds the written rows by transaction number. The look also counts the rows, because a
deleted row shows only in the count. In addition, the look reads some blocks in turn, so that each row is compared regularly.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from onefold.verify.audit.derived_rows import Added
from onefold.verify.audit.versions import Place, Versions
from onefold.verify.expect import Workload
from onefold.verify.invariants import invariants
from onefold.verify.snapshot import ORIGIN, DatabaseSnapshot, Row
from onefold.verify.tables import Comparer, Key, Wanted, extra
from onefold.verify.verdict import Finding, beyond_ledger

# Half a megabyte, with some thousand rows.
_BLOCKS = 64
# Beyond the last block of any table.
_NO_BLOCK = 2**32 - 2
# The share of the time for the pipeline's own queries, and for rejected records.
_RARE_SHARE = 0.03


class Tables:
    """Compares the tables of a workload, look by look.

    Attributes:
        rows: the number of rows compared.
        cycle_s: the duration of the last complete pass over all rows; None: no pass is complete.
    """

    def __init__(self, workload: Workload, versions: Versions) -> None:
        self._name = workload.name
        self._tables = [Comparer(table) for table in versions.tables]
        self._versions = versions
        self._rules = invariants(workload.name)
        self._at = (0, 0)  # the number of the table, and the block
        self._began_at = time.monotonic()
        self._rare_at = 0.0
        self._horizon = ""  # of the last look
        self._off: dict[str, int] = {}  # by table, the surplus of rows, without the known extra rows
        self._extra: dict[str, set[Key]] = {one.table.name: set() for one in self._tables}
        self.rows = 0
        self.cycle_s: float | None = None

    def columns(self, snapshot: DatabaseSnapshot) -> Iterator[Finding]:
        """Yield columns of wrong types: asked once, since rows are unreadable if a column is missing."""
        for one in self._tables:
            yield from snapshot.column_types(one.table)

    def look(self, snapshot: DatabaseSnapshot, budget_s: float) -> Iterator[Finding]:
        """Yield the mismatches of this look.

        Args:
            budget_s: the time for reading blocks. The first look reads all blocks.
        """
        horizon = snapshot.horizon()
        for one in self._tables:
            yield from self._changed(one, snapshot)
        for added in self._versions.sums:
            yield from self._sums(added, snapshot)
        yield from self._blocks(snapshot, time.monotonic() + budget_s)
        for one in self._tables:
            yield from self._counted(one, snapshot)
        if time.monotonic() >= self._rare_at:
            began_at = time.monotonic()
            yield from snapshot.rejected(self._name)
            yield from snapshot.invariants(self._rules)
            now = time.monotonic()
            self._rare_at = now + (now - began_at) / _RARE_SHARE
        self._horizon = horizon
        for one in self._tables:
            self._versions.changed[one.table.name].clear()

    def _changed(self, one: Comparer, snapshot: DatabaseSnapshot) -> Iterator[Finding]:
        """Compare the rows written since the last look, and the rows that should have been written."""
        if not self._horizon:
            return
        left = set(self._versions.changed[one.table.name])
        for row in snapshot.newer(one.table, self._horizon):
            left.discard(one.key(row))
            yield from self._row(one, row)
        missing = set(left)
        for row in snapshot.by_keys(one.table, left) if left else ():
            missing.discard(one.key(row))
            yield from self._row(one, row)
        yield from self._missing(one, missing)

    def _blocks(self, snapshot: DatabaseSnapshot, deadline: float) -> Iterator[Finding]:
        number, block = self._at
        while True:
            one = self._tables[number]
            table = one.table
            last = block + _BLOCKS >= snapshot.blocks(table)
            for row in snapshot.in_blocks(table, block, _NO_BLOCK if last else block + _BLOCKS):
                yield from self._row(one, row)
            number, block = (number + 1, 0) if last else (number, block + _BLOCKS)
            if number == len(self._tables):
                now = time.monotonic()
                self._at, self.cycle_s, self._began_at = (0, 0), now - self._began_at, now
                return
            self._at = number, block
            if self.cycle_s is not None and time.monotonic() >= deadline:
                return

    def _counted(self, one: Comparer, snapshot: DatabaseSnapshot) -> Iterator[Finding]:
        table = one.table
        # A known extra row would hide a missing row.
        known = len(self._extra[table.name])
        off = snapshot.count(table.name) - known - self._versions.counts[table.name]
        if off != self._off.get(table.name, 0):  # the mismatches behind an unchanged surplus are named already
            missing = set(self._versions.keys(table))
            for row in snapshot.rows(table.name, (*table.key, *ORIGIN)):
                key, origin = row[: len(table.key)], row[len(table.key) :]
                if key not in missing:
                    self._extra[table.name].add(key)
                    yield extra(table, key, origin)
                missing.discard(key)
            yield from self._missing(one, missing)
            self._off[table.name] = off - len(self._extra[table.name]) + known

    def _row(self, one: Comparer, row: Row) -> Iterator[Finding]:
        self.rows += 1
        key = one.key(row)
        wanted = self._versions.wanted(one.table, key)
        if wanted is None:
            self._extra[one.table.name].add(key)
        if (wrong := one.row(key, row, wanted)) is not None:
            yield wrong

    def _missing(self, one: Comparer, keys: Iterable[Key]) -> Iterator[Finding]:
        for key in keys:
            if (wanted := self._versions.wanted(one.table, key)) is not None:
                yield from one.missing(key, wanted)

    def _sums(self, added: Added, snapshot: DatabaseSnapshot) -> Iterator[Finding]:
        comparer = Comparer(added.table)
        wanted: dict[Key, Wanted] = {key: (row, None, None) for key, row in added.wanted().items()}
        yield from comparer.whole(snapshot, wanted, wanted.get)
        self.rows += comparer.found


class Ledger:
    """The offsets of the tables according to the ledger, which only grow."""

    def __init__(self, topic_ids: Mapping[str, str]) -> None:
        self._topic_ids = topic_ids
        self.landed: dict[Place, int] = {}

    def take(self, found: Mapping[Place, tuple[int, str]], ends: Mapping[Place, int]) -> Iterator[Finding]:
        """Take the present ledger, and name impossible entries.

        Args:
            ends: of the topics, asked for after the ledger.
        """
        for place, before in self.landed.items():
            now = found.get(place, (None, ""))[0]
            if now is None or now < before:
                text = f"the sink had written up to {before}, and its row {'is gone' if now is None else f'says {now}'}"
                yield Finding("wrong ledger", "onefold.ledger", _of(place), text=text)
        for place, (now, topic_id) in found.items():
            if place not in ends:
                continue
            if topic_id != self._topic_ids[place[0]]:
                text = "the sink has written another topic of this name, which has been recreated since"
                yield Finding("wrong ledger", "onefold.ledger", _of(place), text=text)
            elif beyond := [*beyond_ledger({place: now}, ends)]:
                yield from beyond
            else:
                self.landed[place] = max(now, self.landed.get(place, 0))


def _of(place: Place) -> dict[str, Any]:
    return {"topic": place[0], "partition": place[1]}
