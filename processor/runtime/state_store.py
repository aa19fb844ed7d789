"""The states of one task, as of the last committed transaction. The changelog is their durable form.

`MemoryStateStore` keeps all states in memory. `DiskStateStore` keeps them on disk, and recently used states in memory too. The
module `state_manager` decides which store a task has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from onefold.processor.core.abc import KeyValueEngine, Write
from onefold.processor.core.errors import Damaged
from onefold.processor.core.values import Change

#: First byte of the key of a state, in the changelog and on disk.
STATE = b"s"
#: On disk the key of the checkpoint.
CHECKPOINT = b"c"

# What a state takes in memory, estimated from its bytes in the changelog: its place in a dict, the key, and the objects that
# JSON becomes. Trades take two thirds of it, a state of many small objects a little more.
_ENTRY_BYTES, _BYTES_A_BYTE = 100, 2


def memory_of(stored: int) -> int:
    """About how many bytes of memory a state takes whose key and value have so many bytes in the changelog."""
    return _ENTRY_BYTES + _BYTES_A_BYTE * stored


class MemoryStateStore:
    """State by key, in memory."""

    def __init__(self, states: dict[str, Any] | None = None) -> None:
        self._states = states or {}
        #: The state of a key, or None. Bound once: it is called for every record.
        self.get: Callable[[str], Any] = self._states.get

    def items(self) -> Iterable[tuple[str, Any]]:
        """Every key that has a state, and its state."""
        return self._states.items()

    def __len__(self) -> int:
        return len(self._states)

    def apply(self, changes: Mapping[str, Change]) -> None:
        """Take over what a transaction changed. Only after its commit."""
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

    The cache is in two halves. What is used is put into the young one; when that is full it becomes the old one, and what was
    in the old one and not used since is forgotten. So it costs a look-up, and no list in the order of use.

    Args:
        engine: its own from now on; keys are `STATE` and the state key, as in the changelog.
        decode: a state from its bytes. Raises `Corrupted`.
        cache_bytes: about how much memory the cached states may take.
        spoil: called when the files are torn, before that is raised: whoever comes next must not find it again.
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
        """The state of a key, or None. Raises `Damaged` when the files are torn there, and what `decode` raises."""
        state = self._young.get(key)
        if state is not None:
            return state
        state = self._old.get(key)
        if state is not None:
            # It is counted again, by a size that nobody has kept: what is left is a cache that is smaller than it may be.
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
        """Every key that has a state, and its state, one after the other from the disk."""
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
        """Take over what a transaction changed, all of it or nothing. Only after its commit.

        Args:
            written: the changelog records of these states, in the same order.
            checkpoint: how far the states have come with them. None: they are ahead of the one that is there.
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
