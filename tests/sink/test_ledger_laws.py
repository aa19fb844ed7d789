"""The law of the ledger and of landing: whatever two sinks try, what is landed is a plain set of offsets, each landed once."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from onefold.spark_sink.contracts import load_domain
from onefold.spark_sink.errors import Overlap, Rewind
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.landing.land import land
from onefold.spark_sink.landing.ledger import BatchRange, LastRecord, LedgerPosition, OffsetRange
from onefold.spark_sink.landing.staging_tables import Staged
from tests.support.landing import ID, Sink
from tests.support.made_up_domain import write_domain
from tests.support.migrated import migrate_all
from tests.support.waiting import eventually

NAME = "laws"
#: Where each partition begins: an offset is in one of them, for it is also the id of its row.
STARTS = {0: 10, 1: 110}
#: Of so many offsets these hold no record: they are of markers and aborted records.
OFFSETS, MARKERS = 24, {3, 4, 11, 12, 13, 20}
#: In every tier: a step is a transaction or two of PostgreSQL, and so many examples take some seconds.
EXAMPLES = 25
STEPS = [f"sink.{when}_{what}" for what in ("cas", "copy", "merge", "commit") for when in ("before", "after")]
#: What a batch takes of each partition: where it starts, compared with what comes next, and how many offsets it has.
PARTS = st.dictionaries(
    st.sampled_from(sorted(STARTS)), st.tuples(st.integers(-6, 1), st.integers(1, 9)), min_size=1, max_size=2
)
SELDOM = st.sampled_from([False, False, False, True])
Asked = dict[int, tuple[int, int]]


class Crash(BaseException):
    """What a fault point throws: nobody may catch it on the way."""


class Landing(RuleBasedStateMachine):
    """Two sinks of one domain, and what must be landed: a set of offsets a partition."""

    sinks: ClassVar[Sequence[Sink]]
    reader: ClassVar["psycopg.Connection[Any]"]
    plan: ClassVar[Any]

    @initialize()
    def begin(self) -> None:
        """Nothing is landed, and the first offsets are gone from the topic."""
        self.reader.execute(f"TRUNCATE {NAME}.notes")
        with self.reader.transaction():
            ledger.forget(self.reader, NAME)
        self.topic = self.sinks[0].topic
        for partition, start in STARTS.items():
            ledger.open_partition(self.reader, NAME, (self.topic, partition), start, ID, "one")
        self.next = dict(STARTS)
        self.landed: dict[int, set[int]] = {partition: set() for partition in STARTS}
        numbers = set(range(OFFSETS)) - MARKERS
        self.present = {partition: {start + number for number in numbers} for partition, start in STARTS.items()}
        self.last: dict[int, LastRecord | None] = dict.fromkeys(STARTS)

    @rule(partition=st.sampled_from(sorted(STARTS)), since=st.integers(-5, 1), many=st.integers(1, 8))
    def compact(self, partition: int, since: int, many: int) -> None:
        """Records go from the topic, landed or not; counted from what comes next."""
        gone = self.next[partition] + since
        self.present[partition] -= set(range(gone, gone + many))

    @rule(number=st.integers(0, 1), asked=PARTS, reduced=SELDOM, renewed=SELDOM)
    def lands(self, number: int, asked: Asked, reduced: bool, renewed: bool) -> None:
        """One sink, alone."""
        batch = self._batch(asked, "another id" if renewed else ID)
        wanted = self._outcome(batch, reduced)
        assert self._land(number, batch, reduced) is wanted
        if wanted is True:
            self._note(batch)

    @rule(partition=st.sampled_from(sorted(STARTS)), before=st.integers(1, 9), after=st.integers(1, 4))
    def lands_no_new_record(self, partition: int, before: int, after: int) -> None:
        """The last record that was landed is gone, too: an older one that is still there does not take its place."""
        last, following = self.last[partition], self.next[partition]
        self.present[partition] -= set(range(last.offset if last else following, following + after))
        self.lands(0, {partition: (-before, before + after)}, reduced=False, renewed=False)

    @rule(number=st.integers(0, 1), asked=PARTS, step=st.sampled_from(STEPS))
    def crashes(self, number: int, asked: Asked, step: str) -> None:
        """A sink that is killed at a step has landed all, or nothing; its staging is gone with its session."""
        batch = self._batch(asked)
        wanted = self._outcome(batch, reduced=False)

        def crash(name: str) -> None:
            if name == step:
                raise Crash

        reached = wanted is True or step in {
            "sink.before_cas",
            *(("sink.before_commit", "sink.after_commit") if wanted is False else ()),
        }
        try:
            found = self._land(number, batch, False, crash)
        except Crash:
            assert step == "sink.after_cas" or reached
        else:
            assert found is wanted
        if wanted is True and step == "sink.after_commit":
            self._note(batch)

    @rule(first=PARTS, second=PARTS, reduced=st.tuples(SELDOM, SELDOM))
    def race(self, first: Asked, second: Asked, reduced: tuple[bool, bool]) -> None:
        """The second enters while the first is between its look and its commit: it waits, and then sees what was committed."""
        one, two = self._batch(first), self._batch(second)
        if self._outcome(one, reduced[0]) is not True:
            return
        outcome: list[Any] = []
        waiting = threading.Thread(target=lambda: outcome.append(self._land(1, two, reduced[1])))
        pid = self.sinks[1].connection.info.backend_pid

        def enter(name: str) -> None:
            if name == "sink.after_cas":
                waiting.start()
                eventually(lambda: outcome or self._waits(pid), 20, "the second sink waits, or needs not to")

        before = self._outcome(two, reduced[1])
        assert self._land(0, one, reduced[0], enter) is True
        waiting.join(20)
        self._note(one)
        shared = {part.key for part in one.ranges} & {part.key for part in two.ranges}
        wanted = self._outcome(two, reduced[1]) if shared else before
        assert outcome == [wanted]
        if wanted is True:
            self._note(two)

    @invariant()
    def holds(self) -> None:
        """The ledger and the table are what the sets say, and no row was landed twice."""
        stored = ledger.positions(self.reader, NAME)
        assert stored == {
            (self.topic, partition): LedgerPosition(self.next[partition], ID, self.last[partition])
            for partition in STARTS
        }
        rows = self.reader.execute(f'SELECT partition, "offset", landings FROM {NAME}.notes').fetchall()
        wanted = [(partition, offset, 1) for partition, offsets in self.landed.items() for offset in offsets]
        assert sorted(rows) == sorted(wanted)

    def _batch(self, asked: Asked, topic_id: str = ID) -> BatchRange:
        ranges = []
        for partition, (since, many) in sorted(asked.items()):
            start = self.next[partition] + since
            present = self._present(partition, start, start + many)
            last = LastRecord(max(present), max(present) * 7) if present else None
            ranges.append(OffsetRange(self.topic, partition, start, start + many, topic_id, last))
        return BatchRange(NAME, "sink", tuple(ranges))

    def _present(self, partition: int, start: int, end: int) -> set[int]:
        return {offset for offset in self.present[partition] if start <= offset < end}

    def _outcome(self, batch: BatchRange, reduced: bool) -> Any:
        """True: it lands; False: all of it is landed; or the error."""
        following = {part.key: self.next[part.partition] for part in batch.ranges}
        if any(part.topic_id != ID or part.start > following[part.key] for part in batch.ranges):
            return Rewind
        if all(part.end <= following[part.key] for part in batch.ranges):
            return False
        return Overlap if reduced and any(part.start < following[part.key] for part in batch.ranges) else True

    def _note(self, batch: BatchRange) -> None:
        for part in batch.ranges:
            at, partition = self.next[part.partition], part.partition
            new = self._present(partition, at, part.end)
            self.landed[partition] |= new
            self.next[partition] = max(at, part.end)
            self.last[partition] = LastRecord(max(new), max(new) * 7) if new else self.last[partition]

    def _land(self, number: int, batch: BatchRange, reduced: bool, step: Any = lambda name: None) -> Any:
        sink = self.sinks[number]
        tables = [
            sink.table(*sorted(self._present(part.partition, part.start, part.end)), partition=part.partition)
            for part in batch.ranges
        ]
        targets = {
            name: replace(target, reduced=reduced and name == self.topic)
            for name, target in self.plan.domain.targets.items()
        }
        try:
            return land(sink.connection, batch, Staged(sink.stage, pa.concat_tables(tables)), targets, step)
        except (Rewind, Overlap) as refused:
            return type(refused)

    def _waits(self, pid: int) -> bool:
        asked = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
        return self.reader.execute(asked, (pid,)).fetchone() == ("Lock",)


@pytest.fixture
def landing(tmp_path: Path, checkout: Path, database: str) -> Iterator[type[Landing]]:
    """The machine, with two sinks and a database of its own."""
    write_domain(tmp_path, checkout, NAME)
    Landing.plan = SimpleNamespace(domain=load_domain(NAME, tmp_path / "avro", tmp_path / "sql"))
    migrate_all(database, tmp_path / "sql")
    Landing.sinks = [Sink(database, Landing.plan, writer) for writer in ("one", "two")]
    with psycopg.connect(database, autocommit=True) as Landing.reader:
        yield Landing
    for sink in Landing.sinks:
        sink.connection.close()


def test_what_two_sinks_land_is_a_set_of_offsets(landing: type[Landing]) -> None:
    """Any ranges, overlaps, holes and races; reduced or not; also of a topic that was made anew, or is compacted."""
    chosen = settings(
        max_examples=EXAMPLES, stateful_step_count=15, deadline=None, suppress_health_check=[*HealthCheck]
    )
    run_state_machine_as_test(landing, settings=chosen)
