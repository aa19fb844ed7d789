"""The session of a task on the simulated log (see `core.abc`)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from onefold.error_codes import Code
from onefold.processor.core.abc import ChangelogIs, PartitionIdentity, Write, transactional_id
from onefold.processor.core.errors import Corrupted, Retriable, TooMuch
from onefold.processor.core.owner import Owner
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.core.values import Record
from onefold.processor.testing.log import SimulatedEnvelope, SimulatedLog
from onefold.processor.testing.partition import partition_of

TOMBSTONES_KEPT_S = 86_400.0
UNLIMITED = 1 << 40


class SimulatedInputs:
    """A deterministic reader of one partition of every input (see `core.abc.Inputs`)."""

    def __init__(self, log: SimulatedLog, topology: Topology, partition: int) -> None:
        self.partition = partition
        self.owner = Owner(log.cluster_id, topology.name, log.identity(topology.changelog, 0).topic_id)
        self.partitions = log.partitions(topology.inputs[0])
        self._log = log
        self._topology = topology
        self._positions: dict[str, int] = {}

    def partition_of(self, key: str) -> int:
        """The input partition of all records of `key`."""
        return partition_of(key, self.partitions)

    def identities(self) -> Mapping[str, PartitionIdentity]:
        """The identity of each input topic."""
        return {topic: self._log.identity(topic, self.partition) for topic in self._topology.reads}

    def ask_topic_ids(self) -> Callable[[], Mapping[str, str]]:
        """Return a function that returns the topic ids as of this call."""
        topic_ids = {topic: identity.topic_id for topic, identity in self.identities().items()}
        return lambda: topic_ids

    def seek(self, offsets_next: Mapping[str, int]) -> None:
        """Continue reading the inputs at the given offsets."""
        self._positions = dict(offsets_next)

    def poll(self, count_max: int, timeout_s: float) -> Sequence[Record]:
        """Read at most `count_max` records, without waiting."""
        records: list[Record] = []
        for topic, position in list(self._positions.items()):
            found, self._positions[topic] = self._log.read(topic, self.partition, position, count_max - len(records))
            records += [
                Record(topic, self.partition, at, entry.key, entry.value, SimulatedEnvelope(entry))
                for at, entry in found
            ]
        return self.owner.of(records)

    def positions(self) -> Mapping[str, int]:
        """The offset to read next of each input topic, after any markers."""
        return self._positions

    def close(self) -> None:
        """Do nothing: the reader has no client to close."""


class SimulatedSession(SimulatedInputs):
    """A deterministic session with the guarantees of a Kafka session.

    Attributes:
        ambiguous: whether to re-initialise the producer before the next transaction. The real session finds this in
            librdkafka's log; a test sets the attribute.
        epoch: the epoch of the present producer.
    """

    def __init__(self, log: SimulatedLog, topology: Topology, partition: int) -> None:
        super().__init__(log, topology, partition)
        self.ambiguous = False
        self._begun = False
        self.epoch = 0
        self.progress_next: int | None = None
        self._id = transactional_id(topology.name, partition)

    def open(self) -> None:
        """Take the task: fence the previous owner, and abort an open transaction."""
        self.epoch = self._log.init(self._id)

    def changelog_is(self) -> ChangelogIs:
        """The identity and the offsets of the changelog partition. Tombstones stay for a day, as by Kafka's default."""
        return ChangelogIs(*self._log.identity(self._topology.changelog, self.partition), TOMBSTONES_KEPT_S)

    def record_bytes_max(self) -> Mapping[str, int]:
        """The maximum bytes of a record, for each topic that the task writes to."""
        return {topic: self._log.bytes_max.get(topic, UNLIMITED) for topic in self._topology.written}

    def restore(self, *, stable: bool = False, start: int | None = None) -> Iterator[tuple[bytes, bytes | None]]:
        """Read committed changelog records up to the high watermark. Raises `Retriable` where the real session waits."""
        topic = self._topology.changelog
        entries, position = self._log.read(topic, self.partition, start or 0)
        end = self._log.identity(topic, self.partition).end
        for _, entry in entries:
            yield entry.key or b"", entry.value
        if position < end and not stable:
            raise Retriable(
                Code.TOPIC_UNREADABLE,
                f"{topic}/{self.partition} stays at offset {position} of {end}: a transaction is open there",
            )

    def last_progress(self, *, stable: bool = False) -> bytes | None:
        """The value of the last committed progress record."""
        found = [value for key, value in self.restore(stable=stable) if key == PROGRESS_KEY]
        return found[-1] if found else None

    def begin(self) -> bool:
        """Begin a transaction. Returns whether the producer was re-initialised, because of an ambiguous request."""
        if self._begun:
            raise Corrupted(Code.CHANGELOG_WRONG, "a transaction is open already")
        reinitialised = self.ambiguous
        if reinitialised:
            self.epoch = self._log.init(self._id)
            self.ambiguous = False
        self._begun = True
        return reinitialised

    def produce(self, writes: Iterable[Write]) -> None:
        """Add records to the open transaction."""
        for topic, partition, key, value, headers in writes:
            if len(value or b"") > self._log.bytes_max.get(topic, UNLIMITED):
                raise TooMuch(Code.TOO_LARGE, f"a record is too large for {topic}")
            self._log.write(self._id, self.epoch, topic, partition, key, value, headers or ())

    def produce_progress(self, write: Write) -> None:
        """Add the progress record, and note the offset after the record."""
        self.produce([write])
        self.progress_next = self._log.identity(self._topology.changelog, self.partition).end

    def commit(self) -> None:
        """Commit the open transaction."""
        self._log.end(self._id, self.epoch, commit=True)
        self._begun = False

    def abort(self) -> None:
        """Abort the open transaction. The next `begin` re-initialises the producer."""
        self._begun = False
        if not self.epoch:
            return  # not open yet
        self._log.late_end(self._id, self.epoch, commit=False)
        self.ambiguous = True

    def close(self) -> None:
        """Close the session. An open transaction is aborted, unless a successor has aborted the transaction already."""
        if self.epoch:
            self._log.late_end(self._id, self.epoch, commit=False)
