"""The expected rows at the offsets of the sink's ledger.

The model is at the processor's offsets. The tables are at the sink's offsets, with a variable lag. So the last versions of a
recently written row stay in memory, until the sink has written the last version and the version was compared. From then on, the
model has the expected row. Memory: the versions not yet written by the sink.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from onefold.verify.audit.derived_rows import Added, Together
from onefold.verify.derived_tables import Gathered, Sums
from onefold.verify.expect import Table, Workload
from onefold.verify.matching import told_of
from onefold.verify.outputs import LastOutput
from onefold.verify.record import Source
from onefold.verify.tables import Key, Wanted

#: (topic, partition)
Place = tuple[str, int]
Rows = Mapping[str, Mapping[Key, tuple[tuple[Any, ...], Source]]]


class RowVersion:
    """A row as of one output record. After the comparison, `values` are those of the model."""

    __slots__ = ("fields", "judged", "landed", "values", "written")

    def __init__(self, written: LastOutput, fields: dict[str, Any], values: tuple[Any, ...] | None = None) -> None:
        self.written = written
        self.fields = fields
        self.values = values
        self.judged = self.landed = values is not None


class Versions:
    """The row versions of all tables of a workload.

    Args:
        rows: of the model.
        last: by table and key, the last output record.
    """

    def __init__(self, workload: Workload, rows: Rows, last: Mapping[str, Mapping[Key, LastOutput]]) -> None:
        tables = list(workload.outputs.values())
        self._rows = rows
        self._last = last
        self._recent: dict[str, dict[Key, list[RowVersion]]] = {table.name: {} for table in tables}
        self._queues: dict[Place, deque[tuple[Table, Key, RowVersion]]] = {}
        self._told = {table.name: told_of(table) for table in tables}
        self._together = {
            table.name: Together(table, rows) for table in workload.tables if isinstance(table.sums, Gathered)
        }
        #: The tables with an expected row for each key.
        self.tables = [*tables, *(together.table for together in self._together.values())]
        #: By table, the expected number of rows.
        self.counts = {table.name: len(last[table.name]) for table in tables}
        self.counts |= {name: len(together.rows) for name, together in self._together.items()}
        #: By table, the keys written by the sink since the caller cleared them.
        self.changed: dict[str, set[Key]] = {table.name: set() for table in self.tables}
        self.sums = [Added(table, workload, rows) for table in workload.tables if isinstance(table.sums, Sums)]
        self._sums_of = {table.name: [added for added in self.sums if added.of == table.name] for table in tables}
        self._together_of = {
            table.name: [one for one in self._together.values() if one.of == table.name] for table in tables
        }

    def wrote(
        self, table: Table, key: Key, fields: dict[str, Any], written: LastOutput, before: LastOutput | None
    ) -> RowVersion:
        """Take an output record; `before` is the previous record of the same row."""
        recent = self._recent[table.name]
        versions = recent.get(key)
        if versions is None:
            versions = recent[key] = []
            if before is not None and (row := self._rows[table.name].get(key)) is not None:
                versions.append(RowVersion(before, {}, row[0]))
        version = RowVersion(written, fields)
        if table.adds:
            version.values = self._added(table, versions[-1] if versions else None, version)
        versions.append(version)
        queue = self._queues.get((table.topic, written.partition))
        if queue is None:
            queue = self._queues[table.topic, written.partition] = deque()
        queue.append((table, key, version))
        return version

    def judge(self, table: Table, key: Key, version: RowVersion, right: tuple[Any, ...] | None) -> None:
        """Note that an output record was compared; `right`: the values of the row; None: no row, or unknown values."""
        version.judged = True
        if right is not None:
            version.values = right
        if version.landed:
            self._forget(table, key)

    def land(self, ledger: Mapping[Place, int]) -> None:
        """Move to these offsets of the ledger, which never decrease."""
        for place, queue in self._queues.items():
            until = ledger.get(place, 0)
            while queue and queue[0][2].written.offset < until:
                self._land(*queue.popleft())

    def _land(self, table: Table, key: Key, version: RowVersion) -> None:
        recent, name = self._recent[table.name], table.name
        versions = recent[key]
        # Of the versions before, at most one is left, which the sink has written; the list is short.
        at = versions.index(version)
        before = versions[at - 1] if at else None
        if before is None:
            self.counts[name] += 1
        for added in self._sums_of[name]:
            added.move(self._values(table, before) if before else None, self._values(table, version))
        for together in self._together_of[name] if before is None else ():
            self._gather(together, self._values(table, version))
        version.landed = True
        if at:
            del versions[:at]
        self.changed[name].add(key)
        if version.judged and len(versions) == 1:
            del recent[key]

    def _gather(self, together: Together, values: tuple[Any, ...]) -> None:
        name = together.table.name
        if (key := together.take(values)) is not None:
            self.changed[name].add(key)
            self.counts[name] = len(together.rows)

    def _forget(self, table: Table, key: Key) -> None:
        versions = self._recent[table.name].get(key, ())
        if len(versions) == 1 and versions[0].landed and versions[0].judged:
            del self._recent[table.name][key]

    def wanted(self, table: Table, key: Key) -> Wanted | None:
        """Return the expected row; None: no row must exist."""
        if (together := self._together.get(table.name)) is not None:
            return (together.rows[key], None, None) if key in together.rows else None
        versions = self._recent[table.name].get(key)
        if versions:
            version = versions[0]
            if not version.landed:
                return None
            return self._values(table, version), version.written, version.written.source
        written, row = self._last[table.name].get(key), self._rows[table.name].get(key)
        return None if written is None or row is None else (row[0], written, row[1])

    def keys(self, table: Table) -> Iterator[Key]:
        """Return the keys of all expected rows: the same as from `wanted`, without computing the rows."""
        if (together := self._together.get(table.name)) is not None:
            return iter(together.rows)
        rows, recent = self._rows[table.name], self._recent[table.name]
        on_the_way = {key for key, versions in recent.items() if not versions[0].landed}
        return (key for key in self._last[table.name] if key not in on_the_way and (key in recent or key in rows))

    @property
    def kept(self) -> int:
        """The number of rows with a version not yet written or not yet compared."""
        return sum(map(len, self._recent.values()))

    def _added(self, table: Table, before: RowVersion | None, version: RowVersion) -> tuple[Any, ...]:
        """Return the values after an output record with increments."""
        told = self._values(table, version)
        if before is None:
            return told
        stood = self._values(table, before)
        names = [column.name for column in table.columns]
        return tuple(
            one + more if name in table.adds else more for name, one, more in zip(names, stood, told, strict=True)
        )

    def _values(self, table: Table, version: RowVersion) -> tuple[Any, ...]:
        if version.values is None:
            fields = version.fields
            version.values = self._told[table.name](fields)
        return version.values
