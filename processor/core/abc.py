"""The protocols between the runtime and the world: Kafka and the simulated log keep the same promises."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from onefold.processor.core.owner import Owner
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Fields, Headers, Record


class PartitionIdentity(NamedTuple):
    """Which topic a name stands for now, and what one of its partitions holds: offsets [start, end)."""

    topic_id: str
    start: int
    end: int


#: A record to be written: topic, partition (None: that of its key), key, value, headers. No headers are None: an empty
#: list costs the Kafka client as much as the rest of the record.
Write = tuple[str, int | None, bytes | None, bytes | None, Headers | None]


def transactional_id(pipeline: str, partition: int) -> str:
    """That of a task. It is the same for ever: whoever takes the task over fences whoever had it, at once."""
    return f"onefold-{pipeline}-{partition}"


class ChangelogIs(NamedTuple):
    """What a task's changelog partition is now.

    Attributes:
        topic_id: of the topic that the name stands for.
        start, end: it holds the offsets [start, end).
        tombstones_kept_s: so long, in seconds, a record that deletes a key is there at least. None: the cluster does not say.
    """

    topic_id: str
    start: int
    end: int
    tombstones_kept_s: float | None


class Inputs(Protocol):
    """Reading: one task's partition of every input. Every method may raise the errors of `core.errors`."""

    partition: int
    owner: Owner

    def partition_of(self, key: str) -> int:
        """The partition of the inputs where all records of `key` belong: Kafka's default, whoever produced them."""

    def identities(self) -> Mapping[str, PartitionIdentity]:
        """Per input topic."""

    def ask_topic_ids(self) -> Callable[[], Mapping[str, str]]:
        """Ask now which topics the inputs' names stand for; the answer is waited for when the returned function is called.

        An id never comes back. When it is still the one from before at a moment after records were read, all of them came
        from that very topic.
        """

    def seek(self, offsets_next: Mapping[str, int]) -> None:
        """Read the inputs from there on."""

    def poll(self, count_max: int, timeout_s: float) -> Sequence[Record]:
        """What is there, at most so many records, in order within each topic; waits at most that time for the first,
        and less when an input's end is found. Each has its envelope, of which nothing was taken out yet. They are those of
        the owner (`Owner.of`): what another pipeline put into a topic for itself alone is passed like a marker.

        It does not wait for more. How many come together is the broker's business: a transaction costs the same whatever
        is in it.
        """

    def positions(self) -> Mapping[str, int]:
        """Per input topic the offset to read next; unlike a record's offset it also moves past markers."""

    def close(self) -> None:
        """Leave."""


class Transactions(Protocol):
    """Writing: one task's transactional producer, and its changelog partition. Methods may raise the errors of `core.errors`.

    Between `begin` and `commit` or `abort` a transaction is open.

    Attributes:
        partitions: of the inputs and the changelog, as of the start of the process.
    """

    partitions: int

    def open(self) -> None:
        """Take the task: fences whoever had it before, and ends a transaction that was left open."""

    progress_next: int | None
    """The changelog offset behind the progress record that was produced last, as the cluster has told it; None: it has not.
    Known once the transaction is committed.
    """

    def changelog_is(self) -> ChangelogIs:
        """Which topic the changelog is, and what its partition holds."""

    def record_bytes_max(self) -> Mapping[str, int]:
        """Per topic that the task writes to, how many bytes a record may have: by the topic's settings now, and the client's."""

    def restore(self, *, stable: bool = False, start: int | None = None) -> Iterator[tuple[bytes, bytes | None]]:
        """Key and value of all committed records of the changelog partition, up to its *high watermark*.

        Args:
            start: only those from that offset on.
            stable: up to the last stable offset, before a transaction that somebody left open. That may be an old state, which
                is enough for whoever has a decision log to go on from.
        """

    def last_progress(self, *, stable: bool = False) -> bytes | None:
        """Value of the last committed progress record of the changelog partition; up to where, as `restore`."""

    def begin(self) -> bool:
        """Begin a transaction. True when the producer had to be re-initialised for it.

        A re-initialised producer has taken the task back from whoever may have had it meanwhile: what they committed must be
        looked at before anything is produced.
        """

    def produce(self, writes: Iterable[Write]) -> None:
        """Add records to the open transaction. Raises `TooMuch` when they do not fit."""

    def produce_progress(self, write: Write) -> None:
        """Add the progress record, and find out where it comes to lie (`progress_next`)."""

    def commit(self) -> None:
        """Make the open transaction true, all of it. When it returns, the outcome is known and was success.

        Raises `TooMuch` when a record was too large for the cluster, or all of them for the time that there is.
        """

    def abort(self) -> None:
        """Make nothing of the open transaction true. The next `begin` re-initialises the producer."""

    def close(self) -> None:
        """Leave; an open transaction is aborted."""


class TransactionSession(Inputs, Transactions, Protocol):
    """All that a task needs of the log when it decides by Kafka transactions."""


class Assignment(Protocol):
    """Who has which task: a consumer group, or every instance all of them. It decides who *tries*, never who wins."""

    assigned_once: bool

    def poll(self, timeout_s: float) -> None:
        """Hear of tasks that come and go, waiting at most that time. Raises `Refused`, and `Retriable` while nobody answers."""

    def publish(self, offsets_next: Mapping[tuple[str, int], int]) -> None:
        """Tell Kafka's own tools how far the tasks are. Nothing reads it back as the truth."""

    def close(self) -> None:
        """Leave."""


class Codec(Protocol):
    """Bytes to values and back, by the contracts."""

    def decode(self, record: Record) -> Any:
        """The value of an input record; None for a tombstone, where the topology takes them. Raises `Rejected` with the reason
        when it breaks its contract.
        """

    def encode(self, topic: str, value: Fields) -> bytes:
        """The bytes of an output; raises `Rejected` when the value breaks the topic's contract or is too large."""

    def encode_state(self, state: Any) -> bytes:
        """The bytes of a state."""

    def decode_state(self, topology: Topology, data: bytes) -> Any:
        """The state; raises `Corrupted` when the bytes are not a state of this topology."""


class KeyValueEngine(Protocol):
    """Files of one task's states: a sorted map of bytes on disk. Every method may raise `Damaged`.

    What was written is there after the process was killed; after a power cut it may have gone back to what it was after an
    earlier write, and that as a whole.
    """

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """All of these values or none of them; None deletes a key. Of a key that comes twice the last one counts."""

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that begin so, and their values, in order, as of now; in a bounded part of the memory."""

    def about(self) -> int:
        """About how many keys there are."""

    def close(self) -> None:
        """Use it no more. A second call does nothing."""


class Disk(Protocol):
    """Where the files of one task's states are. What is first asked of it takes them: until `close` nobody else has them."""

    def exists(self) -> bool:
        """Whether there are files of before."""

    def open(self) -> KeyValueEngine:
        """The engine, with what was in it, or empty. Raises `Damaged`, and `Refused` for a folder that cannot be written to."""

    def clear(self) -> None:
        """Delete the files, of which no engine is open."""

    def close(self) -> None:
        """Let others have the files, of which no engine is open."""
