"""Rows of models: what `TrackedRows` notes, and models that change their rows in other ways than one by one with their input.

Their pipelines are right: no output record is called wrong.
"""

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from onefold.verify.contracts import contracts
from onefold.verify.fates import Fate
from onefold.verify.models import TrackedRows
from onefold.verify.outputs import Written
from onefold.verify.record import Record, Source
from onefold.verify.state import begin, topics_of
from onefold.workloads import averages, runner
from onefold.workloads.runner import MESSAGES, STATS, TENDENCY
from tests.support.simulated_stage import InMemoryStage, JudgesLog
from tests.verify.test_each_output_alone import ONE, OTHER, READ, Averages, planted, update

ROW = (1,), Source("in", 0, 0)


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (lambda rows: rows.update({2: ROW}, c=ROW), [2, "c"]),
        (lambda rows: rows.update([(2, ROW)]), [2]),
        (lambda rows: rows.__ior__({2: ROW}), [2]),
        (lambda rows: (rows.setdefault(1, None), rows.setdefault(2, ROW)), [2]),
        (lambda rows: (rows.pop(1), rows.pop(2, None)), [1]),
        (lambda rows: rows.popitem(), [1]),
        (lambda rows: rows.__delitem__(1), [1]),
        (lambda rows: rows.clear(), [1]),
    ],
)
def test_all_that_changes_rows_is_noted(change: Callable[[Any], object], changed: list[Any]) -> None:
    rows: Any = TrackedRows({1: ROW})  # type: ignore[dict-item]  # any key will do
    assert rows.changed == []
    change(rows)
    assert rows.changed == changed
    assert rows.before == {key: ROW if key == 1 else None for key in changed}
    assert all(rows[key] == ROW for key in rows)


class Named(TrackedRows):
    """A class of a model's own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def test_rows_of_a_class_of_its_own_come_back_from_a_checkpoint() -> None:
    rows = Named("one")
    rows[1,] = ROW
    rows.changed.clear()
    found = pickle.loads(pickle.dumps(rows))
    assert (type(found), found.name, dict(found), found.changed) == (Named, "one", {(1,): ROW}, [])
    found[2,] = ROW
    assert found.changed == [(2,)]


class Own(runner.Model):
    """A model whose rows of TENDENCY are set in another way."""

    made: Callable[[], dict[Any, Any]] = TrackedRows

    def __init__(self) -> None:
        super().__init__()
        self.shown: dict[Any, Any] = self.made()
        self.rows = {STATS.name: self._stats, TENDENCY.name: self.shown, MESSAGES.name: self._messages}  # type: ignore[dict-item]  # a plain dict, too


class Updating(Own):
    """With `update`."""

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Take the update."""
        taken = super().apply(value, source)
        user = value["user_id"]
        self.shown.update({(user,): self._tendency[user,]})
        return taken


class Late(Own):
    """When it settles."""

    def settle(self) -> None:
        """Bring the rows up to date."""
        for key, row in self._tendency.items():
            if self.shown.get(key) != row:
                self.shown[key] = row


class LateAndPlain(Late):
    """The same without notes."""

    made = dict


class InTwoSteps(Late):
    """First in part, and all of it when it settles."""

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Take the update."""
        taken, key = super().apply(value, source), (value["user_id"],)
        (user, sequence, at, _, _), _ = self._tendency[key]
        self.shown[key] = (user, sequence, at, "", ""), source
        return taken


class InTwoStepsAndPlain(InTwoSteps):
    """The same without notes."""

    made = dict


class Replacing(Own):
    """All of them at once."""

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Take the update."""
        taken = super().apply(value, source)
        self.rows = {**self.rows, TENDENCY.name: TrackedRows(self._tendency)}
        return taken


@READ
@pytest.mark.parametrize("model", [Updating, Late, LateAndPlain, InTwoSteps, InTwoStepsAndPlain, Replacing])
def test_rows_that_a_model_sets_otherwise_are_compared_or_counted(opened: type[JudgesLog], model: type[Own]) -> None:
    stage = InMemoryStage(replace(runner.WORKLOAD, model=model))
    for sequence in range(1, 4):
        stage.play([update(ONE, sequence), update(OTHER, sequence)])
    found, matching = stage.verified(opened)
    assert found == []
    assert matching.compared + matching.passed_over == 18, "three of each update"
    assert matching.passed_over == 0 if model is Updating else matching.passed_over <= 6


class Removing(runner.Model):
    """The second update removes the row of TENDENCY."""

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Take the update."""
        taken = super().apply(value, source)
        if value["sequence_id"] == 2:
            del self._tendency[value["user_id"],]
        return taken


@READ
@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_row_that_an_input_removes_may_have_an_output_record(
    opened: type[JudgesLog], is_written: bool, is_last: bool
) -> None:
    stage = InMemoryStage(replace(runner.WORKLOAD, model=Removing))
    stage.play([update(ONE, 1)])
    row = stage.expected.model.rows[TENDENCY.name][ONE,]
    stage.play([update(ONE, 2)])
    if is_written:
        rows: Any = stage.expected.model.rows[TENDENCY.name]
        removal = [*stage.originals][1]
        stage.keys[row[1]] = str(ONE)
        rows[ONE,] = row
        stage.write(TENDENCY, (ONE,), removal)
        del rows[ONE,]
        rows.changed.clear()
    if not is_last:
        stage.play([update(ONE, 3)])
    found, matching = stage.verified(opened)
    assert found == []
    assert matching.passed_over == int(is_written)


UNDECLARED = (averages.AVERAGES, replace(averages.ALARMS, adds=()))


@READ
def test_records_of_a_table_whose_merge_adds_up_without_saying_so_leave_the_verdict_open(
    opened: type[JudgesLog],
) -> None:
    stage = Averages(adds=True)
    stage.workload = replace(stage.workload, tables=UNDECLARED)
    for at in range(5):
        stage.alarm(at, averages.STREAMS[1])
    found, matching = stage.verified(opened)
    assert found == []
    assert matching.undeclared().startswith("3 output records of averages.alarms have other numbers than their rows")


@READ
def test_of_a_table_whose_merge_may_add_a_number_that_is_neither_the_row_nor_its_growth_is_wrong(
    opened: type[JudgesLog],
) -> None:
    """Also if the others say the growth."""
    stage, places = Averages(adds=True), list[str]()
    stage.workload = replace(stage.workload, tables=UNDECLARED)

    def bug(right: Any, table: Any, key: Any) -> str:
        if table.name != "averages.alarms":
            return str(right(table, key))
        places.append(right(table, key, values=(*key, 7)))
        return ""

    for at in range(5):
        with planted(stage, bug if at == 3 else lambda right, *args: right(*args)):
            stage.alarm(at, averages.STREAMS[1])
    (wrong,) = stage.verified(opened)[0]
    assert (wrong.kind, wrong.columns, wrong.output) == ("wrong output", {"alarms": (3, 7)}, *places)


@READ
@pytest.mark.parametrize("wrong", ["every second one", "all"])
@pytest.mark.parametrize("what", ["growth", "others"])
def test_of_a_table_whose_merge_adds_nothing_each_wrong_number_is_named(
    opened: type[JudgesLog], wrong: str, what: str
) -> None:
    """However many there are, and also if they are by how much the row grows."""
    stage, places, before = InMemoryStage(runner.WORKLOAD), list[str](), list[Any]()

    def bug(right: Any, table: Any, key: Any) -> str:
        values = stage.expected.model.rows[table.name][key][0]
        if table is not STATS:
            return str(right(table, key))
        before.append(values)
        if len(before) == 1 or (wrong != "all" and len(before) % 2):
            return str(right(table, key))
        less = before[-2] if what == "growth" else (0, 0, 5, 5, 5)
        places.append(
            right(table, key, values=(*values[:2], *(a - b for a, b in zip(values[2:], less[2:], strict=True))))
        )
        return places[-1]

    for sequence in range(1, 9):
        with planted(stage, bug):
            stage.play([update(ONE, sequence)])
    found, matching = stage.verified(opened)
    assert [(one.kind, one.output) for one in found] == [("wrong output", place) for place in places]
    assert len(places) == (7 if wrong == "all" else 4)
    assert matching.undeclared() == ""


@READ
def test_a_record_that_has_the_whole_closes_the_verdict_for_no_other(opened: type[JudgesLog]) -> None:
    """What comes next is the whole, too."""
    stage = Averages(adds=True)
    stage.workload = replace(stage.workload, tables=UNDECLARED)
    stage.alarm(0, averages.STREAMS[1])

    def whole(right: Any, table: Any, key: Any) -> str:
        values = stage.expected.model.rows[table.name][key][0]
        return str(right(table, key, values=values) if table.name == "averages.alarms" else right(table, key))

    for at in range(1, 6):
        with planted(stage, whole if at == 2 else lambda right, *args: right(*args)):
            stage.alarm(at, averages.STREAMS[1])
    found, matching = stage.verified(opened)
    assert found == []
    assert matching.undeclared().startswith("3 output records of averages.alarms"), "the verdict is open"


@READ
def test_a_wrong_number_before_a_right_one_is_named(opened: type[JudgesLog]) -> None:
    stage = InMemoryStage(runner.WORKLOAD)
    stage.play([update(ONE, 1)])

    def bug(right: Any, table: Any, key: Any) -> str:
        values = stage.expected.model.rows[table.name][key][0]
        return str(right(table, key, values=(*values[:3], 7, *values[4:]) if table is STATS else values))

    with planted(stage, bug):
        stage.play([update(ONE, 2)])
    stage.play([update(ONE, 3)])
    (wrong,) = stage.verified(opened)[0]
    assert (wrong.kind, wrong.where) == ("wrong output", STATS.topic)
    assert [is_ for _, is_ in wrong.columns.values()] == [7]


def test_output_records_of_an_input_that_changes_many_rows_are_found_by_their_row() -> None:
    """As of a tick, whose output records were read first and in another order."""
    compared = 0

    class Counted(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    count, stage = 1_000, InMemoryStage(runner.WORKLOAD)
    state = begin(stage.workload, JudgesLog(stage.log, topics_of(stage.workload).all), None, {})
    matching, source = state.matching, Source(runner.TOPIC, 0, 0)
    rows: Any = state.oracle.expected.model.rows[TENDENCY.name]
    fields = dict.fromkeys(contracts()[TENDENCY.topic].fields, 0)
    for at in range(count):
        key, written = (Counted(at),), Written(0, at, source)
        record = Record(TENDENCY.topic, 0, at, b"1", b"", [])
        matching.wrote(TENDENCY, key, fields, written, None, record, True)
    for at in reversed(range(count)):
        rows[Counted(at),] = (0,) * 5, source
    matching.changed(source, None, Fate.ACCEPTED)
    assert matching.compared == count
    assert compared < 20 * count


def test_no_rows_have_no_last_one() -> None:
    """As of a dict."""
    with pytest.raises(KeyError):
        TrackedRows().popitem()
