"""The location and the restore of a task's states: in memory while the states are small, on disk beyond.

`restore` reads the changelog into memory, and moves the states to disk once they exceed the memory limit. For states on disk,
`restore` reads only the changelog records after the checkpoint. If states outgrow the memory of a running task, the task moves
them to disk between two transactions.

If files are corrupted, foreign, too new or too old, the manager deletes them and restores the states from the changelog. During
the restore the files have no checkpoint, so files of an interrupted restore are never used.

With replicas, states may be ahead of the changelog. The files have no checkpoint then, and each start deletes and rebuilds
them.
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

# A changelog record of a state, in the form that the caller has.
_Written = TypeVar("_Written")

log = structlog.get_logger()

AUTO, MEMORY, DISK = "auto", "memory", "disk"
# The bytes, by the estimate for memory, that a restore gathers before a flush to disk; and the records of one write. Large
# enough that the fixed cost of a write is small.
_CHUNK_BYTES, _CHUNK_RECORDS = 16 * 1024 * 1024, 40_000
# The number of states in a transaction that serve as a sample of the size.
_SAMPLE = 100


class StateLocation(NamedTuple):
    """The location of states, `memory` or `disk`, and the reason in a few words."""

    kind: str
    why: str


class RestoredState(NamedTuple):
    """The result of a restore: states, progress and quarantine."""

    store: MemoryStateStore | DiskStateStore
    progress: TaskProgress
    quarantine: Quarantine


class StateManager:
    """The manager of one task's states.

    Args:
        kind: `auto`, `memory` or `disk`.
        disk: the folder of the files. None: all states are in memory.
        memory_bytes: the memory for the task's states. With states on disk, half is for decoded states and half for the engine.
        replicas: whether the task has replicas.
        wall: unix seconds.
        step: called with the name of each step that the manager reaches; tests crash a task there.
        beat: called while a long restore makes progress.
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
        self._state_bytes = 0.0  # the estimated memory of a state, from samples
        #: The location of the states.
        self.standing = StateLocation(MEMORY, "as set")

    # --- at the start

    def restore(self, session: Transactions, *, stable: bool = False) -> RestoredState:
        """Restore the states as of the last committed transaction.

        Args:
            stable: whether to stop at the last stable offset, see `Transactions.restore`.

        Raises:
            Corrupted: no task writes such a record, or files are corrupted.
            Refused: a newer Onefold wrote the changelog, or the folder is not writable.
        """
        if self._kind == AUTO:
            self._look()
        if self._disk is None:
            return self._read(session.restore(stable=stable), {})
        # Read the changelog's end before the records. If another owner writes meanwhile, the next restore reads these records
        # again.
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
        """The changelog offset to read from, and the last earlier records that are no states.

        None stands for the start of the changelog, and then no files exist.
        """
        assert self._disk is not None
        if self._replicas:
            if self._engine is not None or self._disk.exists():
                self._clear()
            return None, {}
        found = self._found()
        if isinstance(found, StateCheckpoint):
            # The last progress first: its version decides whether this release can read the changelog.
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
        """Fall back to memory, with a warning, if the folder is unusable, as in a read-only container. Only for `auto`."""
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
        """The checkpoint of existing files, or the reason why the files are unusable. Empty without files."""
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
        """Delete files that are found corrupted, so that no later owner opens them."""
        try:
            yield
        except Damaged:
            self._clear()
            raise

    def _read(self, records: Iterable[tuple[bytes, bytes | None]], others: dict[bytes, bytes | None]) -> RestoredState:
        """Read changelog records, in order. States beyond the memory limit go to disk.

        Args:
            others: the last earlier records that are no states; updated here.
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
            next(store.items(), None)  # check the first state only: reading all states takes long
        return store

    def _decode(self, data: bytes) -> object:
        return self._codec.decode_state(self._topology, data)

    # --- after each transaction

    def needed(self, written: Sequence[_Written]) -> Sequence[_Written]:
        """The part of a transaction's state records that `apply` needs."""
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
        """Apply the changes of a committed transaction. Returns the store to use from now on.

        Args:
            needed: the part of the changelog records that `needed` returned.
            at: the changelog offset after the transaction. None: unknown, and the states on disk get ahead of the checkpoint.
            progress, quarantine: the values as of that offset.

        Raises:
            Damaged: files are corrupted or not writable. The manager has deleted the files.
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
        """Write a checkpoint for the states on disk. The arguments are as of `apply`."""
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
        # States may grow over time, so recent transactions count most.
        self._state_bytes = (self._state_bytes + seen) / 2 if self._state_bytes else seen
        return len(store) * self._state_bytes > self._memory_bytes

    def _move(self, store: MemoryStateStore) -> DiskStateStore:
        """Move the states from memory to disk, without a checkpoint."""
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
        """Close the files, for the next owner."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        if self._disk is not None:
            self._disk.close()


def told_of(standings: Iterable[StateLocation]) -> str:
    """Describe the locations of several tasks' states, with the reasons, in a few words."""
    by_kind: dict[str, list[str]] = {}
    for standing in standings:
        by_kind.setdefault(standing.kind, []).append(standing.why)
    parts = []
    for kind, reasons in sorted(by_kind.items()):
        where = "in memory" if kind == MEMORY else "on disk"
        many = f" of {len(reasons)}" if len(by_kind) > 1 else ""
        parts.append(f"{where}{many} ({', '.join(dict.fromkeys(reasons))})")
    return f"states {' and '.join(parts)}" if parts else ""
