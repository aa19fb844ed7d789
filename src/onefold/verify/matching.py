"""Each output record against the row as its input record made it.

Topics are read side by side, so the model is ahead of the output records of one row and behind those of another. A change of a
row waits until its output record is read; an output record waits until the model takes the input record that it names. Of several
changes of a row in one transaction the processor may write the last one alone: a change is dropped when a later one of the same
row was written. It is missing if `commits` knows that its transaction had ended by then. What waits of a row in the end is
an output record that is missing.

Memory: what waits. A model whose rows do not note their changes (`models.TrackedRows`) has only the last change of each row: an
output record that is read when the row has changed again is counted as not compared.
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
    """What an input record made of a row. `values`: None: it removed the row. `key`: the state key of the input; None: it was a
    tick. `before`: the values before; None: there was no row, or they are not known.
    """

    source: Source
    values: Values | None
    key: str | None
    before: Values | None = None


class Early(NamedTuple):
    """An output record whose input the model has not taken. `named`: the Kafka key that the table names, if it does. `is_later`:
    whether its row had an output record. `version`: of `Matching.versions`.
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
        partitions: of each topic.
        model: has the rows.
        fate: of an input record; `Fate.NONE` while the model has not taken it.
    """

    def __init__(
        self, workload: Workload, partitions: Mapping[str, int], model: RowModel, fate: Callable[[Source], int]
    ) -> None:
        self._tables = tuple(workload.outputs.values())
        self._model = model
        self._fate = fate
        self._states = partitions[workload.inputs[0]]
        self._layouts = {table.topic: Layout(partitions[table.topic]) for table in self._tables}
        # The topics with as many partitions as the inputs.
        self._alike = {table.topic for table in self._tables if partitions[table.topic] == self._states}
        self._changes: dict[str, dict[Key, deque[Change]]] = {table.name: {} for table in self._tables}
        #: How many changes wait for an output record.
        self.ahead = 0
        self._early: dict[Source, list[Early]] = {}
        #: Where transactions of the processor end.
        self.commits = Commits()
        # The last changes of a row in their transactions whose output record was not read before that of a later transaction.
        self._unwritten: dict[tuple[str, Key, Source], Change] = {}
        # Per row and output partition what was written last of tables with columns that grow; None: it is not known.
        may = may_add(workload)
        self._grown: dict[str, dict[Key, dict[int, Values | None]]] = {
            table.name: {} for table in self._tables if table.adds or table.name in may
        }
        # By table without `adds`, how many output records may say by how much the row grows, as for a merge that adds them up.
        self._growing = Counter[str]()
        # Tables whose rows the model changes later than with their input, or replaces as a whole.
        self._late = set[str]()
        # By table and row, the first output record of the row, where it is wrong: unless older ones lie in another partition.
        self._first_wrong: dict[tuple[str, Key], Finding] = {}
        #: How many output records were compared, and how many could not be.
        self.compared = self.passed_over = 0
        #: What is wrong with them.
        self.findings: list[Finding] = []
        self._prepare()

    def _prepare(self) -> None:
        """Functions and what is looked up often, which are no state."""
        self._told = {table.name: told_of(table) for table in self._tables}
        self._named = {table.name: _naming(table) for table in self._tables}
        self._seen = dict(self._model.rows)
        self._noting = {table.name for table in self._tables if hasattr(self._seen[table.name], "changed")}
        #: Makes of an output record what `judged` is given back when the record was compared, with the right values of the row;
        #: None: these are not known.
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
        """Whether the model notes all its changes: if not, output records are to be read before their inputs."""
        return len(self._noting) == len(self._tables)

    def undeclared(self) -> str:
        """That the model may leave out which columns a merge adds up, in one sentence; or ""."""
        for table in self._tables:
            if many := self._growing[table.name]:
                return (
                    f"{many:,} output records of {table.topic} have other numbers than their rows, and the merge of {table.name} "
                    f"may add them up: if it does, name these columns in `adds` of the model's Table"
                )
        return ""

    def take_doubtful(self) -> list[Finding]:
        """Output records that are wrong as the first of their row, now that nothing is ahead of them. They are given once."""
        found = [*self._first_wrong.values()]
        self._first_wrong.clear()
        return found

    @property
    def behind(self) -> int:
        """How many input records were named by output records and not taken."""
        return len(self._early)

    def changed(self, source: Source, key: str | None, fate: int) -> None:
        """Take what the input record at `source` has changed in the model's rows; it has this fate."""
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
        """The rows of the tables whose changes are noted."""
        rows = self._model.rows
        for table in self._tables:
            found = rows[table.name]
            if found is not self._seen[table.name]:
                self._seen[table.name] = found
                self._late.add(table.name)  # what has changed with it, nobody noted
            if table.name in self._noting:
                yield table, found

    def _is_late(self, table: Table) -> bool:
        """Whether it is unknown which input has changed a row of the table, and to what: no notes, or rows follow later."""
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
            self._unwritten.pop((table.name, row, source), None)  # it lies in a partition that was read later
        version = self.versions(table, row, fields, written, before) if self.versions and is_last else None
        if is_last and before and before.source.offset >= source.offset and before.source[:2] == source[:2]:
            return self._judged(table, row, version, None)  # a doubled output, which is named already
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
        elif not is_last or self._is_elsewhere(
            one
        ):  # its change is gone, if a later record of the row was read before it
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
        """What the input has made of the row. It waits no longer, nor does what was before it."""
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
        """Changes of the row wait no longer, for a later one was written. The last one of each transaction before was, too."""
        self.ahead -= len(over)
        before = over[0].before
        for one, after in pairwise((*over, written)):
            if self.commits.part(one.source, after.source):
                if one.values is not None and self._differs(table, before, one.values):
                    self._unwritten[table.name, row, one.source] = one
                before = after.before

    def _differs(self, table: Table, before: Values | None, after: Values) -> bool:
        """Whether an output record of the row tells the two apart."""
        if before is None:
            return True
        told, names = contracts()[table.topic].fields, tuple(column.name for column in table.columns)
        generated = {column.name for column in table.columns if column.generated}
        return any(name in told and name not in generated for name in differing(table, names, before, after))

    def unwritten(self) -> Iterator[Finding]:
        """The output records that are missing though later ones of their rows were written."""
        for (name, row, _), change in self._unwritten.items():
            table = next(table for table in self._tables if table.name == name)
            yield from self._missing(table, row, change)

    def forget(self, reached: Mapping[tuple[str, int], int]) -> None:
        """Forget what is unwritten, and where transactions end below these offsets: no change there waits any more."""
        self._unwritten.clear()
        self.commits.forget(reached)

    def _judged(self, table: Table, row: Key, version: Any, right: Values | None) -> None:
        if self.judged is not None and version is not None:  # None: it was read before anybody asked for versions
            self.judged(table, row, version, right)

    def _compare_with_last(self, one: Early, key: str | None) -> None:
        found = self._model.rows[one.table.name].get(one.row)
        if found is not None and found[1] == one.written.source:
            self._compare(one, Change(found[1], found[0], key))
        else:
            self._pass_over(one)

    def _is_elsewhere(self, one: Early) -> bool:
        """Whether the record does not lie in the partition of its Kafka key, as before partitions were added."""
        return partition_of(_text(one.kafka_key), self._layouts[one.table.topic].partitions) != one.written.partition

    def _pass_over(self, one: Early) -> None:
        self.passed_over += 1
        if one.table.name in self._grown:
            self._grown_by(one, None, ())
        self._judged(one.table, one.row, one.version, None)

    def before(self, reached: Mapping[tuple[str, int], int]) -> None:
        """Name the output records that wait for an input below these offsets, all of which the model has taken: there is none."""
        for source in [source for source in self._early if source.offset < reached.get(source[:2], 0)]:
            for one in self._early.pop(source):
                self._phantom(one)

    def beyond(self, reached: Mapping[tuple[str, int], int]) -> Source | None:
        """An input record at one of these offsets or behind them that is named; None: there is none."""
        return next((source for source in self._early if source.offset >= reached.get(source[:2], 0)), None)

    def left(self) -> Iterator[Finding]:
        """What is wrong now that all topics were read: of each row, the last output record if it is missing; output records that
        name no input record, and those that do not lie in the partition of their Kafka key.
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
        """Rows without the output record of an input below these offsets, whose output records were all read. It is said once."""
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
            return  # what is removed needs no output record, and what changes later may have it with another input
        text = "it was never written"
        yield Finding("missing output", table.topic, row_of(table, row), source=str(change.source), text=text)

    def misplaced(self) -> Iterator[Finding]:
        """Output records that do not lie in the partition of their Kafka key. It is said once."""
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
        """By column what an output record should have and has; nothing where that is not known."""
        if right is None or one.values == right:
            return {}
        names = tuple(column.name for column in one.table.columns)
        return differing(one.table, names, right, without_untold(right, one.values))

    def _is_changed_later(self, one: Early, change: Change) -> bool:
        """Whether the model changes the row, or others of its table, again after its input."""
        name = one.table.name
        if name not in self._late:
            self._settle()
            now = self._model.rows[name].get(one.row)
            if now is not None and now[1] == change.source and now[0] != change.values:
                self._late.add(name)
        return name in self._late

    def _grown_by(self, one: Early, values: Values | None, columns: tuple[str, ...]) -> Values | None:
        """The values of an output record that says by how much these columns grow, `UNTOLD` for each whose growth is not exact;
        None: they are not known, as those of the first one in a partition if others lie elsewhere. The first one of a row grows
        by its `values`.
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
        """The Kafka key, where it is not that of the row. Under the right one, its partition is noted."""
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
    """By how much a number has grown; `UNTOLD` where that is not exact, or it became NULL."""
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
    """What makes a row of the fields of an output record: `UNTOLD` where Postgres computes a column, or no field says it."""
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
    """What is wrong with an output record."""
    place = f"{table.topic}/{written.partition}/{written.offset}"
    return Finding(kind, table.topic, row_of(table, key), wrong, place, str(written.source), text)
