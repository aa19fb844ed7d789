"""Where a task keeps its states, and how they come back: in memory while they are small, on disk when they are not.

`restore` decides it: what the changelog holds goes into memory until it is too much, and from there on to disk. States that
are on disk already stay there; of the changelog only what came after their checkpoint is read. A task whose states grow too
large while it runs takes them to disk between two transactions.

Files that are torn, of something else, too new or too old are deleted, and the states restored from the changelog. While they
are restored they have no checkpoint, so that whoever dies over it leaves nothing that is believed.

With replicas the states may be ahead of the changelog, so their files have no checkpoint: each start deletes and rebuilds them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple, TypeVar

import structlog

from onefold.processor.core.abc import ChangelogIs, Codec, Disk, KeyValueEngine, Transactions, Write
from onefold.processor.core.errors import Damaged, Refused
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Change
from onefold.processor.runtime.batch_limit import Quarantine
from onefold.processor.runtime.changelog import TaskProgress, fitting, in_memory, told
from onefold.processor.runtime.checkpoint import StateCheckpoint, decode, unfit
from onefold.processor.runtime.state_store import CHECKPOINT, STATE, DiskStateStore, MemoryStateStore, memory_of

# A changelog record of a state, as whoever has it spells it.
_Written = TypeVar("_Written")

log = structlog.get_logger()

AUTO, MEMORY, DISK = "auto", "memory", "disk"
# Bytes, estimated as in memory, that are gathered before they go to disk while states are restored or moved, and how many
# records are written at once: enough that a write costs little beside them.
_CHUNK_BYTES, _CHUNK_RECORDS = 16 * 1024 * 1024, 40_000
# States of a transaction whose sizes are looked at, for the size of all.
_SAMPLE = 100


class StateLocation(NamedTuple):
    """Where states are, `memory` or `disk`, and why, in a few words."""

    kind: str
    why: str


class RestoredState(NamedTuple):
    """States, progress and quarantine, as restored."""

    store: MemoryStateStore | DiskStateStore
    progress: TaskProgress
    quarantine: Quarantine


class StateManager:
    """Of one task.

    Args:
        kind: `auto`, `memory` or `disk`.
        disk: where the files are. None: all is kept in memory.
        memory_bytes: what the task's states may take of memory. On disk half of it is for decoded states, and the other half
            is the engine's.
        replicas: whether the task has replicas.
        wall: unix seconds.
        step: called with the name of each step before the next is taken; tests stop a task there.
        beat: called while a long restore goes on.
    """

    def __init__(
        self,
        topology: Topology,
        codec: Codec,
        partition: int,
        *,
        kind: str = MEMORY,
        disk: Disk | None = None,
        memory_bytes: int = 0,
        replicas: bool = False,
        wall: Callable[[], float] = lambda: 0.0,
        step: Callable[[str], None] = lambda name: None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        assert (kind == MEMORY) == (disk is None), "who keeps states on disk has one"
        self._topology = topology
        self._codec = codec
        self._partition = partition
        self._kind = kind
        self._disk = disk
        self._memory_bytes = memory_bytes
        self._replicas = replicas
        self._wall = wall
        self._step = step
        self._beat = beat
        self._engine: KeyValueEngine | None = None
        self._topic_id = ""
        self._state_bytes = 0.0  # that a state takes in memory, as far as seen
        #: Where the states are.
        self.standing = StateLocation(MEMORY, "as set")

    # --- at the start

    def restore(self, session: Transactions, *, stable: bool = False) -> RestoredState:
        """The states as of the last committed transaction.

        Args:
            stable: up to where transactions, see `Transactions.restore`.

        Raises:
            Corrupted: a record is not what a task writes, or files are torn.
            Refused: a newer Onefold wrote the changelog, or the folder cannot be written to.
        """
        if self._kind == AUTO:
            self._look()
        if self._disk is None:
            return self._read(session.restore(stable=stable), {})
        # Before the records are read: what is written meanwhile, by whoever had the task, is read again the next time.
        changelog = session.changelog_is()
        self._topic_id = changelog.topic_id
        start, others = self._resumed(session, changelog)
        with self._spoiling():
            if self._kind == DISK:
                self._opened()
            restored = self._read(session.restore(stable=stable, start=start), others)
            self.mark(changelog.end, restored.progress, restored.quarantine)
        bound = f"{self._memory_bytes >> 20:,} MB"
        if self._engine is None:
            self.standing = StateLocation(MEMORY, f"less than {bound} each")
        else:
            came = "restored from the changelog" if start is None else "gone on from their checkpoint"
            self.standing = StateLocation(DISK, f"{'as set' if self._kind == DISK else f'more than {bound}'}, {came}")
        return restored

    def _resumed(self, session: Transactions, changelog: ChangelogIs) -> tuple[int | None, dict[bytes, bytes | None]]:
        """The offset from which the changelog is read, and the last records before that are no states. None: the start; there are
        no files then.
        """
        assert self._disk is not None
        if self._replicas:
            if self._engine is not None or self._disk.exists():
                self._clear()
            return None, {}
        found = self._found()
        if isinstance(found, StateCheckpoint):
            # Of the last progress first: it says whether the rest can be read at all.
            last = session.last_progress()
            progress = TaskProgress.decode(last) if last else TaskProgress()
            reason = unfit(found, changelog, self._partition, progress, self._wall())
            if not reason:
                return found.next, found.others
        else:
            reason = found
        if reason:
            log.warning("states on disk are rebuilt from the changelog", partition=self._partition, reason=reason)
            self._clear()
        return None, {}

    def _look(self) -> None:
        """Who has not asked for a disk does without, as in a container that must not write; and it is said."""
        try:
            if self._disk is not None:
                self._disk.exists()
        except Refused as reason:
            log.warning(
                "states are kept in memory, however many",
                partition=self._partition,
                reason=str(reason),
                code=str(reason.code),
            )
            self._disk = None
            self.standing = StateLocation(MEMORY, "there is no folder for them on disk")

    def _found(self) -> StateCheckpoint | str:
        """The checkpoint of the files there are; or why they cannot be used, empty when there are none."""
        assert self._disk is not None
        if self._engine is None and not self._disk.exists():
            return ""
        try:
            data = self._opened().get(CHECKPOINT)
        except Damaged as error:
            return str(error)
        return "they have no checkpoint" if data is None else decode(data)

    def _clear(self) -> None:
        assert self._disk is not None
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self._step("before_clear")
        self._disk.clear()
        self._step("after_clear")

    def _opened(self) -> KeyValueEngine:
        if self._engine is None:
            assert self._disk is not None
            self._engine = self._disk.open()
        return self._engine

    @contextmanager
    def _spoiling(self) -> Iterator[None]:
        """Files that turn out to be damaged are deleted, so that nobody tries them again."""
        try:
            yield
        except Damaged:
            self._clear()
            raise

    def _read(self, records: Iterable[tuple[bytes, bytes | None]], others: dict[bytes, bytes | None]) -> RestoredState:
        """Read changelog records, in order; what is too much for memory goes to disk.

        Args:
            others: the last records before these that are no states.
        """
        pending: dict[bytes, bytes | None] = {}
        held = 0
        for key, value in records:
            self._beat()
            if key[:1] != STATE:
                others[key] = value
                continue
            if key in pending:
                held -= memory_of(len(key) + len(pending[key] or b""))
            if value is None and self._engine is None:
                pending.pop(key, None)
                continue
            pending[key] = value
            held += memory_of(len(key) + len(value or b""))
            if self._disk is not None and held > (self._memory_bytes if self._engine is None else _CHUNK_BYTES):
                self._flush(pending)
                held = 0
        progress, quarantine = told(self._topology, others)
        if self._engine is not None:
            self._flush(pending)
            return RestoredState(self._on_disk(), progress, quarantine)
        self._state_bytes = held / len(pending) if pending else 0.0
        states = {key: value for key, value in pending.items() if value is not None}
        return RestoredState(in_memory(self._topology, self._codec, states), progress, quarantine)

    def _flush(self, pending: dict[bytes, bytes | None]) -> None:
        engine = self._opened()
        changes = iter(pending.items())
        while piece := list(islice(changes, _CHUNK_RECORDS)):
            self._step("before_flush")
            engine.write(piece)
            self._beat()
        pending.clear()

    def _on_disk(self) -> DiskStateStore:
        store = DiskStateStore(self._opened(), self._decode, self._memory_bytes // 2, self._clear)
        with fitting():
            next(store.items(), None)  # all of them would be read for that: the first one is like the others
        return store

    def _decode(self, data: bytes) -> object:
        return self._codec.decode_state(self._topology, data)

    # --- after each transaction

    def needed(self, written: Sequence[_Written]) -> Sequence[_Written]:
        """Of the changelog records of a transaction's states those that `apply` has to be given."""
        if self._engine is not None:
            return written
        return written[:_SAMPLE] if self._disk is not None else ()

    def apply(
        self,
        store: MemoryStateStore | DiskStateStore,
        changes: Mapping[str, Change],
        needed: Sequence[Write],
        at: int | None,
        progress: TaskProgress,
        quarantine: Quarantine,
    ) -> MemoryStateStore | DiskStateStore:
        """Take over what a transaction changed, only after its commit. Returns the store to go on with.

        Args:
            at: the changelog offset behind it. None: nobody knows, and what is on disk is ahead of its checkpoint.
            progress, quarantine: as of that offset.

        Raises:
            Damaged: files are torn, or cannot be written to. They are deleted.
        """
        if isinstance(store, MemoryStateStore):
            store.apply(changes)
            if not self._outgrown(store, needed):
                return store
            with self._spoiling():
                moved = self._move(store)
                self.mark(at, progress, quarantine)
            return moved
        with self._spoiling():
            store.apply(changes, needed, self._checkpoint(at, progress, quarantine))
        return store

    def mark(self, at: int | None, progress: TaskProgress, quarantine: Quarantine) -> None:
        """Note that the states on disk are as of that place; the arguments are those of `apply`."""
        checkpoint = self._checkpoint(at, progress, quarantine)
        if self._engine is not None and checkpoint is not None:
            self._step("before_checkpoint")
            self._engine.write([(CHECKPOINT, checkpoint)])
            self._step("after_checkpoint")

    def _checkpoint(self, at: int | None, progress: TaskProgress, quarantine: Quarantine) -> bytes | None:
        if at is None or self._replicas:
            return None
        told = progress.encode(), quarantine.encode()
        return StateCheckpoint(self._topic_id, self._partition, at, self._wall(), *told).encode()

    def _outgrown(self, store: MemoryStateStore, sample: Sequence[Write]) -> bool:
        if not sample:
            return False
        seen = sum(memory_of(len(key or b"") + len(value or b"")) for _, _, key, value, _ in sample) / len(sample)
        # What came first may have been small: the last transactions count most.
        self._state_bytes = (self._state_bytes + seen) / 2 if self._state_bytes else seen
        return len(store) * self._state_bytes > self._memory_bytes

    def _move(self, store: MemoryStateStore) -> DiskStateStore:
        """Take states from memory to disk. They have no checkpoint until one is written."""
        self._clear()
        pending: dict[bytes, bytes | None] = {}
        for key, state in store.items():
            pending[STATE + key.encode()] = self._codec.encode_state(state)
            if len(pending) == _CHUNK_RECORDS:
                self._flush(pending)
        self._flush(pending)
        self.standing = StateLocation(DISK, f"more than {self._memory_bytes >> 20:,} MB, taken there while it ran")
        log.info("states are on disk from now on", partition=self._partition, keys=len(store))
        return self._on_disk()

    def close(self) -> None:
        """Let others have the files."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        if self._disk is not None:
            self._disk.close()


def told_of(standings: Iterable[StateLocation]) -> str:
    """Of several tasks, in a few words: where their states are, and why."""
    by_kind: dict[str, list[str]] = {}
    for standing in standings:
        by_kind.setdefault(standing.kind, []).append(standing.why)
    parts = []
    for kind, reasons in sorted(by_kind.items()):
        where = "in memory" if kind == MEMORY else "on disk"
        many = f" of {len(reasons)}" if len(by_kind) > 1 else ""
        parts.append(f"{where}{many} ({', '.join(dict.fromkeys(reasons))})")
    return f"states {' and '.join(parts)}" if parts else ""
