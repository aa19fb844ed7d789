"""Compare each output record with the row as of its input record.

Topics are read side by side, so the model is ahead of the output records of one row and behind those of the next. A change of a
row waits for its output record. An output record waits until the model takes the input record that it names.

After several changes of a row in one transaction, the processor may write only the last change. So a change is dropped when a
later change of the same row was written. The dropped change is missing if its transaction is known to have ended in between
(`commits`). The changes that still wait at the end are missing output records.

Memory: the waiting changes and records. A model without `models.TrackedRows` has only the last change of each row: an output
record read after a further change of the row counts as not compared.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any, NamedTuple

from onefold.verify.additions import may_add
from onefold.verify.column_types import KINDS, picked
from onefold.verify.commits import Commits
from onefold.verify.contracts import contracts
from onefold.verify.expect import Table, Workload
from onefold.verify.feedback import KEY
from onefold.verify.models import RowModel
from onefold.verify.outcomes import FATES, Fate
from onefold.verify.outputs import LastOutput
from onefold.verify.partitioner import Layout, misplaced, partition_of
from onefold.verify.record import ReadRecord, Source
from onefold.verify.tables import UNTOLD, Key, Values, differing, row_of, without_untold
from onefold.verify.verdict import Finding

# Exact for all digits of a `numeric`.
_EXACT = Context(prec=150_000)


class Change(NamedTuple):
    """The change of a row by an input record.

    Attributes:
        values: the new values; None: the row was removed.
        key: the state key of the input; None: a tick.
        before: the values before; None: no row, or unknown.
    """

    source: Source
    values: Values | None
    key: str | None
    before: Values | None = None


class Early(NamedTuple):
    """An output record read before the model takes its input.

    Attributes:
        named: the Kafka key by the rule of the table; None: the table has no rule.
        is_later: whether the row had an earlier output record.
        version: the result of `Matching.versions`.
    """

    table: Table
    row: Key
    values: Values
    written: LastOutput
    kafka_key: bytes | None
    named: str | None
    is_later: bool
    version: Any


class Matching:
    """Compares the output records of a workload's tables.

    Args:
        partitions: by topic, the number of partitions.
        model: the model with the rows.
        fate: returns the fate of an input record; `Fate.NONE` until the model has taken the record.
    """

    def __init__(
        self, workload: Workload, partitions: Mapping[str, int], model: RowModel, fate: Callable[[Source], int]
    ) -> None:
        self._tables = tuple(workload.outputs.values())
        self._model = model
        self._fate = fate
        self._states = partitions[workload.inputs[0]]
        self._layouts = {table.topic: Layout(partitions[table.topic]) for table in self._tables}
        # The topics with the same number of partitions as the inputs.
        self._alike = {table.topic for table in self._tables if partitions[table.topic] == self._states}
        self._changes: dict[str, dict[Key, deque[Change]]] = {table.name: {} for table in self._tables}
        #: The number of changes that wait for an output record.
        self.ahead = 0
        self._early: dict[Source, list[Early]] = {}
        #: The known ends of the processor's transactions.
        self.commits = Commits()
        # The last changes of a row in their transactions, without an output record before the one of a later transaction.
        self._unwritten: dict[tuple[str, Key, Source], Change] = {}
        # For tables with increments: by row and output partition, the last written values; None: unknown.
        may = may_add(workload)
        self._grown: dict[str, dict[Key, dict[int, Values | None]]] = {
            table.name: {} for table in self._tables if table.adds or table.name in may
        }
        # By table without `adds`, the number of output records that fit as increments, for a merge that adds them up.
        self._growing = Counter[str]()
        # Tables with rows that the model changes after their input, or replaces as a whole.
        self._late = set[str]()
        # By table and row, a wrong first output record. The record may be right if older records lie in a different partition.
        self._first_wrong: dict[tuple[str, Key], Finding] = {}
        #: The number of output records compared, and the number not comparable.
        self.compared = self.passed_over = 0
        #: The mismatches of the output records.
        self.findings: list[Finding] = []
        self._prepare()

    def _prepare(self) -> None:
        """Set functions and lookups, which are no part of the state."""
        self._told = {table.name: told_of(table) for table in self._tables}
        self._named = {table.name: _naming(table) for table in self._tables}
        self._seen = dict(self._model.rows)
        self._noting = {table.name for table in self._tables if hasattr(self._seen[table.name], "changed")}
        #: `versions` makes an object of an output record. `judged` gets this object back after the comparison, with the right
        #: values of the row; None: unknown values.
        self.versions: Callable[[Table, Key, dict[str, Any], LastOutput, LastOutput | None], Any] | None = None
        self.judged: Callable[[Table, Key, Any, Values | None], None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        without = {"_told", "_named", "_seen", "_noting", "versions", "judged"}
        state = {name: value for name, value in self.__dict__.items() if name not in without}
        early = {source: [one._replace(version=None) for one in several] for source, several in self._early.items()}
        return {**state, "_early": early}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    @property
    def is_tracked(self) -> bool:
        """Whether the model notes all its changes. If not, output records must be read before their inputs."""
        return len(self._noting) == len(self._tables)

    def undeclared(self) -> str:
        """Return a sentence if `adds` may lack columns that a merge adds up; or ""."""
        for table in self._tables:
            if many := self._growing[table.name]:
                return (
                    f"{many:,} output records of {table.topic} have other numbers than their rows, and the merge of {table.name} "
                    f"may add them up: if it does, name these columns in `adds` of the model's Table"
                )
        return ""

    def take_doubtful(self) -> list[Finding]:
        """Return wrong first output records of a row, once each. The caller has read all earlier records."""
        found = [*self._first_wrong.values()]
        self._first_wrong.clear()
        return found

    @property
    def behind(self) -> int:
        """The number of input records named by output records and not taken yet."""
        return len(self._early)

    def changed(self, source: Source, key: str | None, fate: int) -> None:
        """Take the changes in the model's rows by the input record at `source`, which has this fate."""
        early: dict[tuple[str, Key], list[Early]] = {}
        for one in self._early.pop(source, ()) if self._early else ():
            early.setdefault((one.table.name, one.row), []).append(one)
        both: list[tuple[Early, Change]] = []
        gone = None, source
        for table, rows in self._rows():
            if not (keys := rows.changed):
                continue
            waiting, rows_before = self._changes[table.name], getattr(rows, "before", None)
            for row in dict.fromkeys(keys) if len(keys) > 1 else keys:
                values, changed_by = rows.get(row, gone)
                if changed_by != source:
                    self._late.add(table.name)
                    continue
                row_before = rows_before.get(row) if rows_before else None
                change = Change(source, values, key, row_before and row_before[0])
                if early and (ones := early.get((table.name, row))):
                    both.append((ones.pop(0), change))
                    if over := waiting.pop(row, ()):
                        self._drop(table, row, over, change)
                    continue
                self.ahead += 1
                if (before := waiting.get(row)) is None:
                    waiting[row] = deque((change,))
                else:
                    before.append(change)
            keys.clear()
            if rows_before:
                rows_before.clear()
        for one, change in both:
            self._compare(one, change)
        for one in (one for ones in early.values() for one in ones):
            if fate == Fate.ACCEPTED and self._is_late(one.table):
                self._compare_with_last(one, key)
            else:
                self._phantom(one, fate)

    def _rows(self) -> Iterator[tuple[Table, Any]]:
        """Yield the tables with noted changes, and their rows."""
        rows = self._model.rows
        for table in self._tables:
            found = rows[table.name]
            if found is not self._seen[table.name]:
                self._seen[table.name] = found
                self._late.add(table.name)  # changes by the replacement are not noted
            if table.name in self._noting:
                yield table, found

    def _is_late(self, table: Table) -> bool:
        """Return whether the input behind a change of a row is unknown: changes are not noted, or rows change later."""
        if table.name in self._noting and table.name not in self._late:
            self._settle()
        return table.name not in self._noting or table.name in self._late

    def _settle(self) -> None:
        self._model.settle()
        for table, rows in self._rows():
            if rows.changed:
                self._late.add(table.name)
                rows.changed.clear()
                getattr(rows, "before", {}).clear()

    def wrote(
        self,
        table: Table,
        row: Key,
        fields: dict[str, Any],
        written: LastOutput,
        before: LastOutput | None,
        record: ReadRecord,
        is_last: bool,
    ) -> None:
        """Take an output record; the arguments are those of `outputs.Heard`."""
        source = written.source
        if self._unwritten:
            self._unwritten.pop((table.name, row, source), None)  # its partition was read later
        version = self.versions(table, row, fields, written, before) if self.versions and is_last else None
        if is_last and before and before.source.offset >= source.offset and before.source[:2] == source[:2]:
            return self._judged(table, row, version, None)  # a doubled output, named already
        try:
            values = self._told[table.name](fields)
        except (ValueError, ArithmeticError) as error:
            self.findings.append(finding("unreadable output", table, row, written, {}, str(error)))
            return self._judged(table, row, version, None)
        naming = self._named[table.name]
        named = naming(fields) if naming else None
        one = Early(table, row, values, written, record.key, named, before is not None, version)
        if (change := self._change(table, row, source)) is not None:
            self._compare(one, change)
        elif self._fate(source) == Fate.NONE:
            self._early.setdefault(source, []).append(one)
        elif self._fate(source) != Fate.ACCEPTED:
            self._phantom(one)
        elif not is_last or self._is_elsewhere(one):  # a later record of the row may have removed the change
            self._layouts[table.topic].take(
                _text(record.key), written.partition, written.offset, source, row_of(table, row)
            )
            self._pass_over(one)
        elif self._is_late(table):
            self._compare_with_last(one, None)
        else:
            self._phantom(one)
        return None

    def _change(self, table: Table, row: Key, source: Source) -> Change | None:
        """Return the change of the row by the input. This change and the earlier ones no longer wait."""
        waiting = self._changes[table.name].get(row)
        if waiting is None:
            return None
        for at, change in enumerate(waiting):
            if change.source == source:
                if at:
                    self._drop(table, row, [waiting.popleft() for _ in range(at)], change)
                waiting.popleft()
                self.ahead -= 1
                if not waiting:
                    del self._changes[table.name][row]
                return change
        return None

    def _drop(self, table: Table, row: Key, over: Sequence[Change], written: Change) -> None:
        """Drop changes of the row, because a later change was written. Note the last change of each earlier transaction as
        unwritten.
        """
        self.ahead -= len(over)
        before = over[0].before
        for one, after in pairwise((*over, written)):
            if self.commits.part(one.source, after.source):
                if one.values is not None and self._differs(table, before, one.values):
                    self._unwritten[table.name, row, one.source] = one
                before = after.before

    def _differs(self, table: Table, before: Values | None, after: Values) -> bool:
        """Return whether an output record of the row would differ."""
        if before is None:
            return True
        told, names = contracts()[table.topic].fields, tuple(column.name for column in table.columns)
        generated = {column.name for column in table.columns if column.generated}
        return any(name in told and name not in generated for name in differing(table, names, before, after))

    def unwritten(self) -> Iterator[Finding]:
        """Yield the missing output records of rows with later output records."""
        for (name, row, _), change in self._unwritten.items():
            table = next(table for table in self._tables if table.name == name)
            yield from self._missing(table, row, change)

    def forget(self, reached: Mapping[tuple[str, int], int]) -> None:
        """Forget unwritten changes, and the ends of transactions below these offsets, where no change waits any more."""
        self._unwritten.clear()
        self.commits.forget(reached)

    def _judged(self, table: Table, row: Key, version: Any, right: Values | None) -> None:
        if self.judged is not None and version is not None:  # None: read before `versions` was set
            self.judged(table, row, version, right)

    def _compare_with_last(self, one: Early, key: str | None) -> None:
        found = self._model.rows[one.table.name].get(one.row)
        if found is not None and found[1] == one.written.source:
            self._compare(one, Change(found[1], found[0], key))
        else:
            self._pass_over(one)

    def _is_elsewhere(self, one: Early) -> bool:
        """Return whether the record lies outside the partition of its Kafka key, as after an increase of partitions."""
        return partition_of(_text(one.kafka_key), self._layouts[one.table.topic].partitions) != one.written.partition

    def _pass_over(self, one: Early) -> None:
        self.passed_over += 1
        if one.table.name in self._grown:
            self._grown_by(one, None, ())
        self._judged(one.table, one.row, one.version, None)

    def before(self, reached: Mapping[tuple[str, int], int]) -> None:
        """Name the output records that wait for an input below these offsets: the model has taken all of these inputs."""
        for source in [source for source in self._early if source.offset < reached.get(source[:2], 0)]:
            for one in self._early.pop(source):
                self._phantom(one)

    def beyond(self, reached: Mapping[tuple[str, int], int]) -> Source | None:
        """Return an input record at or behind these offsets that an output record names; None: no such record."""
        return next((source for source in self._early if source.offset >= reached.get(source[:2], 0)), None)

    def left(self) -> Iterator[Finding]:
        """Yield the mismatches known after all topics were read. Of each row, the last output record may be missing. Output
        records may name no input record, or lie outside the partition of their Kafka key.
        """
        for table in self._tables:
            for row, waiting in self._changes[table.name].items():
                yield from self._missing(table, row, waiting[-1])
        for several in self._early.values():
            yield from map(self._phantom_of, several)
        yield from self._first_wrong.values()
        self.findings += (found := [*self.misplaced()])
        yield from found

    def missing(self, reached: Mapping[tuple[str, int], int]) -> Iterator[Finding]:
        """Yield missing output records of inputs below these offsets, once each. The caller has read all output records of
        these inputs.
        """
        for table in self._tables:
            changes = self._changes[table.name]
            for row in [
                row for row, (first, *_) in changes.items() if first.source.offset < reached.get(first.source[:2], 0)
            ]:
                waiting = changes[row]
                while waiting and waiting[0].source.offset < reached.get(waiting[0].source[:2], 0):
                    over = waiting.popleft()
                    self.ahead -= 1
                if not waiting:
                    del changes[row]
                yield from self._missing(table, row, over)

    def _missing(self, table: Table, row: Key, change: Change) -> Iterator[Finding]:
        if change.values is None or self._is_late(table):
            return  # a removed row needs no output record, and a row that changes later may have one from a later input
        text = "it was never written"
        yield Finding("missing output", table.topic, row_of(table, row), source=str(change.source), text=text)

    def misplaced(self) -> Iterator[Finding]:
        """Yield output records outside the partition of their Kafka key, once each."""
        for topic, layout in self._layouts.items():
            yield from misplaced(topic, layout.misplaced())

    def _phantom(self, one: Early, fate: int | None = None) -> None:
        self.findings.append(self._phantom_of(one, fate))
        self._judged(one.table, one.row, one.version, None)

    def _phantom_of(self, one: Early, fate: int | None = None) -> Finding:
        fate = self._fate(one.written.source) if fate is None else fate
        text = FATES[fate] if fate != Fate.ACCEPTED else "that input record does not change this row, or not last"
        return finding("phantom output", one.table, one.row, one.written, {}, text)

    def _compare(self, one: Early, change: Change) -> None:
        table, written = one.table, one.written
        right = self._grown_by(one, change.values, table.adds) if table.adds else change.values
        if table.adds and right is not None and any(value is UNTOLD for value in right):
            right = None
        wrong = self._misplaced(one, change)
        differs = self._differing(one, right)
        says_growth = False
        if table.name in self._grown and not table.adds:
            numbers = tuple(differs) if _are_numbers(differs) else ()
            grown = self._grown_by(one, change.values, numbers)
            if grown is not None:
                grown = without_untold(one.values, grown)
            says_growth = bool(numbers) and one.is_later and not self._differing(one, grown)
        if right is None or (differs and self._is_changed_later(one, change)):
            self.passed_over += 1
        else:
            self.compared += 1
            if says_growth:
                self._growing[table.name] += 1
            elif differs and right is change.values and (table.adds or not one.is_later):
                self._first_wrong[table.name, one.row] = finding("wrong output", table, one.row, written, differs)
            else:
                wrong = differs | wrong
        if wrong:
            self.findings.append(finding("wrong output", table, one.row, written, wrong))
        self._judged(table, one.row, one.version, change.values)

    def _differing(self, one: Early, right: Values | None) -> dict[str, tuple[Any, Any]]:
        """Return the differences of an output record by column, as expected and found values; empty if unknown."""
        if right is None or one.values == right:
            return {}
        names = tuple(column.name for column in one.table.columns)
        return differing(one.table, names, right, without_untold(right, one.values))

    def _is_changed_later(self, one: Early, change: Change) -> bool:
        """Return whether the model changes the row, or any row of its table, after its input."""
        name = one.table.name
        if name not in self._late:
            self._settle()
            now = self._model.rows[name].get(one.row)
            if now is not None and now[1] == change.source and now[0] != change.values:
                self._late.add(name)
        return name in self._late

    def _grown_by(self, one: Early, values: Values | None, columns: tuple[str, ...]) -> Values | None:
        """Return the values of an output record with increments in `columns`, `UNTOLD` for an inexact increment. The increments
        in the first record of a row are its `values`. None: the values are unknown, as for the first record in a partition if
        earlier records of the row lie elsewhere.
        """
        table, partition = one.table, one.written.partition
        grown = self._grown[table.name].setdefault(one.row, {})
        if partition not in grown:
            is_first = not grown
            grown[partition] = values
            if self._first_wrong.pop((table.name, one.row), None):
                self.compared -= 1
                self.passed_over += 1
            return values if is_first else None
        before, grown[partition] = grown[partition], values
        if before is None or values is None or not columns:
            return None
        return tuple(
            growth(value, was) if column.name in columns else value
            for column, value, was in zip(table.columns, values, before, strict=True)
        )

    def _misplaced(self, one: Early, change: Change) -> dict[str, tuple[Any, Any]]:
        """Return a wrong Kafka key, as expected and found key. With the right key, note the partition for `misplaced`."""
        source, partition, table = change.source, one.written.partition, one.table
        is_at_home = partition == source.partition and one.named is None and table.topic in self._alike
        layout = self._layouts[table.topic]
        if is_at_home and change.key is not None and one.kafka_key == change.key.encode() and layout.knows(source):
            return {}
        right = change.key if one.named is None else one.named
        found = None if one.kafka_key is None else _text(one.kafka_key)
        if right is None and found is not None and partition_of(found, self._states) == source.partition:
            right = found  # a tick is for all keys of its partition
        if found != right or found is None:
            return {KEY: (right, found)}
        layout.take(found, partition, one.written.offset, source, row_of(table, one.row))
        return {}


def _text(kafka_key: bytes | None) -> str:
    return (kafka_key or b"").decode(errors="backslashreplace")


def _are_numbers(differs: dict[str, tuple[Any, Any]]) -> bool:
    return all(isinstance(value, int | float | Decimal) for both in differs.values() for value in both)


def growth(value: Any, before: Any) -> Any:
    """Return the increment of a number; `UNTOLD` for an inexact increment, or for a new NULL."""
    if value is None or isinstance(value, float) or isinstance(before, float):
        return UNTOLD
    if before is None:
        return value
    return _EXACT.subtract(value, before) if isinstance(value, Decimal) else value - before


def _naming(table: Table) -> Callable[[dict[str, Any]], str] | None:
    named = table.kafka_key
    if not named:
        return None
    return (lambda fields: str(fields[named])) if isinstance(named, str) else (lambda fields: str(named(fields)))


def told_of(table: Table) -> Callable[[dict[str, Any]], Values]:
    """Return a function from the fields of an output record to a row, with `UNTOLD` for a column computed by PostgreSQL or
    without a field.
    """
    told = contracts()[table.topic].fields
    columns = [column for column in table.columns if column.name in told and not column.generated]
    read = picked([column.name for column in columns], [KINDS[column.kind].from_output for column in columns])
    if len(columns) == len(table.columns):
        return read
    places = [columns.index(column) if column in columns else -1 for column in table.columns]
    return lambda fields: _spread(read(fields), places)


def _spread(values: Values, places: list[int]) -> Values:
    return tuple([UNTOLD if at < 0 else values[at] for at in places])


def finding(kind: str, table: Table, key: Key, written: LastOutput, wrong: dict[str, Any], text: str = "") -> Finding:
    """Return the mismatch of an output record."""
    place = f"{table.topic}/{written.partition}/{written.offset}"
    return Finding(kind, table.topic, row_of(table, key), wrong, place, str(written.source), text)
