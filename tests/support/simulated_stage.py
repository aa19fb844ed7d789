"""A stage with topics in memory and real tables, and the verifier's log of these topics."""

from collections.abc import Callable, Iterable

from onefold.error_codes import Code
from onefold.processor.testing import SimulatedLog
from onefold.verify.expect import Workload
from onefold.verify.judge import Verifier
from onefold.verify.kafka import Kafka
from onefold.verify.log import Log, Place, TopicIdentity
from onefold.verify.matching import Matching
from onefold.verify.record import ReadRecord
from onefold.verify.state import begin, read_evenly, topics_of
from onefold.verify.verdict import CannotTell, Finding, Verdict
from tests.support.stage import PARTITIONS, Header, Stage

#: Timestamp of the first record.
SENT_MS = 1_700_000_000_000


class JudgesLog(Log):
    """Topics of a simulated log, read as the verifier reads a broker's."""

    def __init__(self, log: SimulatedLog, topics: Iterable[str]) -> None:
        self._simulated = log
        self.cluster_id = log.cluster_id
        self.topics = {name: TopicIdentity(log.identity(name, 0).topic_id, log.partitions(name)) for name in topics}
        self.places = [(name, p) for name, topic in self.topics.items() for p in range(topic.partitions)]
        self.positions = dict.fromkeys(self.places, 0)
        self.records = 0
        self._held = set[Place]()

    def go_on(self, positions: dict[Place, int]) -> None:
        self.positions = dict(positions)

    def hold(self, places: Iterable[Place], held: bool) -> None:
        (self._held.update if held else self._held.difference_update)(places)

    def compacted(self, topics: Iterable[str]) -> list[str]:
        return [topic for topic in topics if topic in self._simulated.compacted]

    def gone(self) -> str:
        now = ((name, self._simulated.identity(name, 0).topic_id) for name in self.topics)
        return next((name for name, topic_id in now if topic_id != self.topics[name].topic_id), "")

    def close(self) -> None:
        """Nothing to close."""

    def starts(self) -> dict[Place, int]:
        return {place: self._simulated.identity(*place).start for place in self.places}

    def stable_ends(self) -> dict[Place, int]:
        return {place: self._simulated.stable(*place) for place in self.places}

    def high_ends(self) -> dict[Place, int]:
        return {place: self._simulated.identity(*place).end for place in self.places}

    def read(
        self, ends: dict[Place, int], take: Callable[[ReadRecord], None], alive: Callable[[], object] = lambda: None
    ) -> None:
        if all(self.positions[place] >= end for place, end in ends.items()):
            return
        for place in self.places:
            if place in self._held:
                continue
            position = self.positions[place] or self._simulated.identity(*place).start
            end = max(ends.get(place, 0), position)
            # Read one record more than requested, if there is one, also for an empty request: a client returns whole batches.
            found, at = self._simulated.read(*place, position, end - position + 1)
            if at < end:
                raise CannotTell(
                    Code.TOPIC_UNREADABLE,
                    f"{place[0]}/{place[1]} can be read only up to offset {at}, and it ends at {end}",
                )
            for offset, entry in found:
                take(ReadRecord(*place, offset, entry.key, entry.value, list(entry.headers), entry.timestamp_ms))
            self.records += len(found)
            self.positions[place] = at


def kafka_of(log: SimulatedLog, opened: type[JudgesLog] = JudgesLog) -> Kafka:
    """A simulated log for a verifier, without replayed or dropped dead letters."""
    return Kafka(
        log=lambda client, topics: opened(log, topics),
        receipts=lambda client, owner, topic_ids: {},
    )


class SimulatedStage(Stage):
    """Topics in memory, tables in PostgreSQL."""

    def __init__(self, dsn: str, workload: Workload) -> None:
        self.log = SimulatedLog("cluster")
        super().__init__("", dsn, workload)

    def judge(self, during: Callable[[str], None] = lambda what: None, timeout_s: float = 0.0) -> Verdict:
        """Run the verifier. `during` is called with the present step, and may act meanwhile. Raises `CannotTell`."""
        judge = Verifier(self.workload.name, {}, self.dsn, lambda what, records: during(what), kafka=self.kafka)
        verdict = Verdict(self.workload.name, "", "")
        judge.run(verdict, timeout_s)
        return verdict

    @property
    def kafka(self) -> Kafka:
        """The stage's log for a verifier."""
        return kafka_of(self.log)

    def flush(self) -> None:
        """Nothing to wait for."""

    def _open(self) -> tuple[str, dict[str, str]]:
        for topic in self.topics:
            self.log.create(topic, PARTITIONS)
        return self.log.cluster_id, {topic: self.log.identity(topic, 0).topic_id for topic in self.topics}

    def _send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: list[Header]
    ) -> ReadRecord:
        sent_ms = SENT_MS + len(self.originals)
        offset = self.log.append(topic, key, value, partition=partition, headers=headers, timestamp_ms=sent_ms)
        self._ends[topic, partition] = offset + 1
        return ReadRecord(topic, partition, offset, key, value, list(headers), sent_ms)


class InMemoryStage(SimulatedStage):
    """Topics in memory without tables, for checks of topics alone."""

    def __init__(self, workload: Workload) -> None:
        super().__init__("", workload)

    def verified(self, opened: type[JudgesLog] = JudgesLog) -> tuple[list[Finding], Matching]:
        """Mismatches that `verify` finds in the topics, and the comparison of output records."""
        work, topics = self.workload, topics_of(self.workload)
        log = opened(self.log, topics.all)
        state = begin(work, log, None, {})
        order = state.order
        if order is not None:
            order.go_on(state.oracle.feed, stops=False)

        def take(record: ReadRecord) -> None:
            if record.topic in work.reads:
                (order.feed if order else state.oracle.feed)(record)
            elif record.topic != topics.changelog:
                state.take_written(record, topics)

        read_evenly(log, work, state.matching, log.stable_ends(), take)
        expected, matching = state.oracle.settled(), state.matching
        found = [*state.outputs.judge(expected), *matching.findings, *matching.left()]
        for table in work.outputs.values():
            for key, (_, source) in expected.model.rows[table.name].items():
                last = state.outputs.last[table.name].get(key)
                if last is not None and last.source != source:  # as the comparison with tables reports
                    found.append(Finding("wrong origin", table.name, {}, {"source": (source, last.source)}))
        return found, matching

    def _migrate(self) -> None:
        """No database to migrate."""

    def _fill_ledger(self) -> None:
        """No database to fill."""

    def _fill_tables(self) -> None:
        """No tables to fill."""


class OutputsFirst(JudgesLog):
    """Reads output records before inputs."""

    def __init__(self, log: SimulatedLog, topics: Iterable[str]) -> None:
        super().__init__(log, topics)
        inputs = {name.removesuffix(".dead") for name in self.topics if name.endswith(".dead")}
        self.places.sort(key=lambda place: place[0] in inputs)


class LastPartitionFirst(JudgesLog):
    """Reads the partitions of each topic from the last to the first."""

    def __init__(self, log: SimulatedLog, topics: Iterable[str]) -> None:
        super().__init__(log, topics)
        self.places.reverse()
