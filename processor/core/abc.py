"""The protocols between the runtime and the outside, implemented by Kafka and the simulated log with the same guarantees."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from onefold.processor.core.owner import Owner
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Fields, Headers, Record


class PartitionIdentity(NamedTuple):
    """The present topic of a name, and the offsets [start, end) of one partition."""

    topic_id: str
    start: int
    end: int


#: A record to be written: topic, partition (None: the key's partition), key, value, headers. None stands for no headers, since
#: an empty list is slow in the Kafka client.
Write = tuple[str, int | None, bytes | None, bytes | None, Headers | None]


def transactional_id(pipeline: str, partition: int) -> str:
    """Return the transactional id of a task. The id never changes, so a new owner fences the previous owner at once."""
    return f"onefold-{pipeline}-{partition}"


class ChangelogIs(NamedTuple):
    """The present state of a task's changelog partition.

    Attributes:
        topic_id: the id of the present topic of the name.
        start, end: the partition has the offsets [start, end).
        tombstones_kept_s: the minimum lifetime of a record that deletes a key, in seconds. None: unknown.
    """

    topic_id: str
    start: int
    end: int
    tombstones_kept_s: float | None


class Inputs(Protocol):
    """The reader of one task's partition of every input. Every method may raise the errors of `core.errors`."""

    partition: int
    owner: Owner

    def partition_of(self, key: str) -> int:
        """Return the partition of the inputs for `key`, by Kafka's default partitioner."""

    def identities(self) -> Mapping[str, PartitionIdentity]:
        """Return the identity of the partition, per input topic."""

    def ask_topic_ids(self) -> Callable[[], Mapping[str, str]]:
        """Start a request for the ids of the input topics. The returned function waits for the response.

        Kafka never reuses an id. If an id is unchanged after records were read, all the records came from the same topic.
        """

    def seek(self, offsets_next: Mapping[str, int]) -> None:
        """Set the offset to read next, per input topic."""

    def poll(self, count_max: int, timeout_s: float) -> Sequence[Record]:
        """Return the available records, at most `count_max`, in order within each topic. Each record has its unread envelope.
        Waits for the first record, at most `timeout_s`, and less at the end of an input. `Owner.of` filters the records:
        another pipeline's copies and replays are skipped like transaction markers.

        The method does not wait for further records. The broker decides the size of a batch, and a transaction
        costs the same for any size.
        """

    def positions(self) -> Mapping[str, int]:
        """Return the offset to read next, per input topic. Unlike a record's offset, the position also moves past markers."""

    def close(self) -> None:
        """Close the clients."""


class Transactions(Protocol):
    """The transactional producer and the changelog partition of one task. Methods may raise the errors of `core.errors`.

    A transaction is open between `begin` and `commit` or `abort`.

    Attributes:
        partitions: the number of partitions of the inputs and the changelog at the start of the process.
    """

    partitions: int

    def open(self) -> None:
        """Take over the task: fence the previous owner, and abort an open transaction of the transactional id."""

    progress_next: int | None
    """The changelog offset behind the progress record that was produced last, as the cluster has told it; None: it has not.
    Known once the transaction is committed.
    """

    def changelog_is(self) -> ChangelogIs:
        """Return the identity and the settings of the changelog partition."""

    def record_bytes_max(self) -> Mapping[str, int]:
        """Return the maximum bytes of a record, per topic written: by the topic's present settings, and the client's."""

    def restore(self, *, stable: bool = False, start: int | None = None) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield key and value of all committed records of the changelog partition, up to the *high watermark*.

        Args:
            start: the first offset to read. None: the partition's start.
            stable: stop at the last stable offset, before an open transaction. The states may be old, which is
                enough for a task that continues from a decision log.
        """

    def last_progress(self, *, stable: bool = False) -> bytes | None:
        """Return the value of the last committed progress record of the changelog partition. `stable`: see `restore`."""

    def begin(self) -> bool:
        """Begin a transaction. Return True if the producer had to be re-initialised.

        A re-initialised producer has taken the task back from a possible other owner. The caller must look for that owner's
        commits before it produces any record.
        """

    def produce(self, writes: Iterable[Write]) -> None:
        """Add records to the open transaction. Raises `TooMuch` if the records do not fit."""

    def produce_progress(self, write: Write) -> None:
        """Add the progress record, and request its offset (`progress_next`)."""

    def commit(self) -> None:
        """Commit the open transaction. When the method returns, the commit has succeeded.

        Raises `TooMuch` if a record is too large for the cluster, or if the records take longer than the time limit.
        """

    def abort(self) -> None:
        """Abort the open transaction. The next `begin` re-initialises the producer."""

    def close(self) -> None:
        """Abort an open transaction and close the clients."""


class TransactionSession(Inputs, Transactions, Protocol):
    """The log for a task that decides by Kafka transactions: inputs and transactions."""


class Assignment(Protocol):
    """The tasks of this process: by a consumer group, or all tasks in every replica.

    The assignment decides who tries. Fencing or the decision log decides whose result counts.
    """

    assigned_once: bool

    def poll(self, timeout_s: float) -> None:
        """Process assigned and revoked tasks. Waits at most `timeout_s`. Raises `Refused`, or `Retriable` if Kafka is away."""

    def publish(self, offsets_next: Mapping[tuple[str, int], int]) -> None:
        """Commit the tasks' offsets to Kafka, for Kafka's own tools. No task reads these offsets as its progress."""

    def close(self) -> None:
        """Close the clients."""


class Codec(Protocol):
    """Encode and decode values by the schemas."""

    def decode(self, record: Record) -> Any:
        """Return the value of an input record; None for a tombstone, if the topology accepts tombstones. Raises `Rejected` with
        the reason if the record does not match its schema.
        """

    def encode(self, topic: str, value: Fields) -> bytes:
        """Return the bytes of an output. Raises `Rejected` if the value does not match the topic's schema or is too large."""

    def encode_state(self, state: Any) -> bytes:
        """Return the bytes of a state."""

    def decode_state(self, topology: Topology, data: bytes) -> Any:
        """Return the state. Raises `Corrupted` if the bytes are not a state of this topology.

        Raises `Refused` for the state of a parked key if the topology does not park keys.
        """


class KeyValueEngine(Protocol):
    """The state files of one task: a sorted map of bytes on disk. Every method may raise `Damaged`.

    Completed writes survive a killed process. A power loss may undo the latest writes, each as a whole: the map is then as
    after an earlier write.
    """

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write all values atomically; None deletes a key. If a key occurs twice, the last value counts."""

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the present keys with the prefix, and their values, in order. The method uses a bounded amount of memory."""

    def about(self) -> int:
        """Return the approximate number of keys."""

    def close(self) -> None:
        """Close the files. A second call does nothing."""


class Disk(Protocol):
    """The place of one task's state files. The first call locks the files for this owner until `close`."""

    def exists(self) -> bool:
        """Return whether there are files from an earlier run."""

    def open(self) -> KeyValueEngine:
        """Open the engine, with its old content or empty. Raises `Damaged`, or `Refused` if the folder is not writable."""

    def clear(self) -> None:
        """Delete the files. No engine may be open."""

    def close(self) -> None:
        """Unlock the files. No engine may be open."""
