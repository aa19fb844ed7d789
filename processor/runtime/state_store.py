"""The states of one task, as of the last committed transaction. The changelog is their durable form.

`MemoryStateStore` keeps all states in memory. `DiskStateStore` keeps all states on disk, and recently used states in memory
too. The module `state_manager` chooses the store of a task.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from onefold.processor.core.abc import KeyValueEngine, Write
from onefold.processor.core.errors import Damaged
from onefold.processor.core.values import Change

#: First byte of the key of a state, in the changelog and on disk.
STATE = b"s"
#: The key of the checkpoint on disk.
CHECKPOINT = b"c"

# The estimated memory of a state: a constant for the place in a dict and the key, and a factor for the objects decoded from
# each byte in the changelog.
_ENTRY_BYTES, _BYTES_A_BYTE = 100, 2


def memory_of(stored: int) -> int:
    """Estimate the memory of a state, in bytes, from the bytes of key and value in the changelog."""
    return _ENTRY_BYTES + _BYTES_A_BYTE * stored


class MemoryStateStore:
    """State by key, in memory."""

    def __init__(self, states: dict[str, Any] | None = None) -> None:
        self._states = states or {}
        #: The state of a key, or None. Bound once, because every record calls this function.
        self.get: Callable[[str], Any] = self._states.get

    def items(self) -> Iterable[tuple[str, Any]]:
        """All keys with a state, and the states."""
        return self._states.items()

    def __len__(self) -> int:
        return len(self._states)

    def apply(self, changes: Mapping[str, Change]) -> None:
        """Apply the changes of a committed transaction."""
        for key, (state, _) in changes.items():
            if state is None:
                self._states.pop(key, None)
            else:
                self._states[key] = state

    def snapshot(self) -> dict[str, Any]:
        """A copy of all states by key."""
        return dict(self._states)


class DiskStateStore:
    """State by key, on disk, with a cache of decoded states.

    The cache has two halves. A used state goes into the young half. A full young half replaces the old half, whose states are
    evicted unless used since. A cache hit costs a look-up or two, without a list in the order of use.

    Args:
        engine: the files, owned by the store from now on; keys are `STATE` and the state key, as in the changelog.
        decode: decodes a state. Raises `Corrupted`.
        cache_bytes: the approximate memory for cached states.
        spoil: called if a read finds corrupted files, before the error is raised: the next owner must not open the files.
    """

    def __init__(
        self,
        engine: KeyValueEngine,
        decode: Callable[[bytes], Any],
        cache_bytes: int,
        spoil: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._read = engine.get
        self._decode = decode
        self._spoil = spoil
        self._half_bytes = cache_bytes // 2
        self._young: dict[str, Any] = {}
        self._old: dict[str, Any] = {}
        self._young_bytes = 0

    def get(self, key: str) -> Any:
        """The state of a key, or None. Raises `Damaged` if the files are corrupted, and the errors of `decode`."""
        state = self._young.get(key)
        if state is not None:
            return state
        state = self._old.get(key)
        if state is not None:
            # The state is in both halves now, which only shrinks the cache. The size was not stored: the old half's average
            # counts.
            self._hold(key, state, self._half_bytes // max(1, len(self._old)))
            return state
        try:
            data = self._read(STATE + key.encode())
        except Damaged:
            self._spoil()
            raise
        if data is None:
            return None
        state = self._decode(data)
        self._hold(key, state, memory_of(len(key) + len(data)))
        return state

    def _hold(self, key: str, state: Any, size: int) -> None:
        if self._young_bytes + size > self._half_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0
        self._young[key] = state
        self._young_bytes += size

    def items(self) -> Iterator[tuple[str, Any]]:
        """All keys with a state, and the states, read from disk one by one."""
        decode, skip = self._decode, len(STATE)
        try:
            for key, data in self._engine.items(STATE):
                yield key[skip:].decode(), decode(data)
        except Damaged:
            self._spoil()
            raise

    def __len__(self) -> int:
        return self._engine.about()

    def apply(self, changes: Mapping[str, Change], written: Iterable[Write], checkpoint: bytes | None) -> None:
        """Apply the changes of a committed transaction, atomically.

        Args:
            written: the changelog records of the changed states, in the same order.
            checkpoint: the checkpoint after the changes. None: the states get ahead of the stored checkpoint.
        """
        records: list[tuple[bytes, bytes | None]] = [(key or b"", value) for _, _, key, value, _ in written]
        assert len(records) == len(changes), "a changelog record a change"
        batch = records if checkpoint is None else [*records, (CHECKPOINT, checkpoint)]
        self._engine.write(batch)
        for (key, (state, _)), (_, data) in zip(changes.items(), records, strict=True):
            self._old.pop(key, None)
            if state is None:
                self._young.pop(key, None)
            else:
                self._hold(key, state, memory_of(len(key) + len(data or b"")))

    def snapshot(self) -> dict[str, Any]:
        """A copy of all states by key."""
        return dict(self.items())
