"""State files in memory, with the effects of a kill and of a power cut (see `core.abc.Disk`)."""

from collections.abc import Callable, Iterable, Iterator

from onefold.error_codes import Code
from onefold.processor.core.errors import Damaged


class SimulatedFiles:
    """Files that outlive a process: the content of each task, and the owners. `writes`: all writes, oldest first."""

    def __init__(self) -> None:
        self.writes: dict[str, list[list[tuple[bytes, bytes | None]]]] = {}
        self.torn: set[str] = set()
        self._owners: dict[str, object] = {}

    def kill(self) -> None:
        """Kill the owners. Their writes remain."""
        self._owners.clear()

    def cut_power(self, writes: int = 1) -> None:
        """Kill the owners, and lose the last writes of each task, as if they had not reached the disk."""
        self.kill()
        for found in self.writes.values():
            del found[max(0, len(found) - writes) :]

    def take(self, name: str, owner: object) -> str:
        """Take the files of a name, or of a different name if another owner has them."""
        while self._owners.setdefault(name, owner) is not owner:
            name += "+"
        return name

    def let_go(self, owner: object) -> None:
        """Release the files of an owner."""
        self._owners = {name: other for name, other in self._owners.items() if other is not owner}


class SimulatedDisk:
    """The disk of one task."""

    def __init__(self, files: SimulatedFiles, name: str) -> None:
        self._files = files
        self._name = name

    def _taken(self) -> str:
        return self._files.take(self._name, self)

    def exists(self) -> bool:
        """Whether files exist already."""
        return self._taken() in self._files.writes

    def open(self) -> "SimulatedEngine":
        """Open the engine with its content."""
        name = self._taken()
        if name in self._files.torn:
            raise Damaged(Code.STATES_DAMAGED, "the files are corrupted")
        return SimulatedEngine(self._files.writes.setdefault(name, []))

    def clear(self) -> None:
        """Delete the files."""
        name = self._taken()
        self._files.writes.pop(name, None)
        self._files.torn.discard(name)

    def close(self) -> None:
        """Release the files."""
        self._files.let_go(self)


class SimulatedEngine:
    """A sorted map of bytes."""

    def __init__(self, writes: list[list[tuple[bytes, bytes | None]]]) -> None:
        self._writes: list[list[tuple[bytes, bytes | None]]] | None = writes
        self._values = {key: value for write in writes for key, value in write}
        self.get: Callable[[bytes], bytes | None] = self._values.get

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write all of these values atomically."""
        assert self._writes is not None, "it is closed"
        made = list(changes)
        self._writes.append(made)
        self._values.update(made)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys with a prefix, and their values, in order, as of now."""
        yield from sorted((k, v) for k, v in self._values.items() if v is not None and k.startswith(prefix))

    def about(self) -> int:
        """Number of keys."""
        return sum(value is not None for value in self._values.values())

    def close(self) -> None:
        """Close the engine."""
        self._writes = None
