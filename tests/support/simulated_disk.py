"""Files of states in memory, with what a kill and a power cut do to them (see `core.abc.Disk`)."""

from collections.abc import Callable, Iterable, Iterator

from onefold.error_codes import Code
from onefold.processor.core.errors import Damaged


class SimulatedFiles:
    """What outlives a process: the files of each task, and who has them. `writes` holds what was written, oldest first."""

    def __init__(self) -> None:
        self.writes: dict[str, list[list[tuple[bytes, bytes | None]]]] = {}
        self.torn: set[str] = set()
        self._owners: dict[str, object] = {}

    def kill(self) -> None:
        """Who had files is dead. What they wrote is there."""
        self._owners.clear()

    def cut_power(self, writes: int = 1) -> None:
        """The same, and of each task the last so many writes never reached the disk."""
        self.kill()
        for found in self.writes.values():
            del found[max(0, len(found) - writes) :]

    def take(self, name: str, owner: object) -> str:
        """The files of that name, or those of another one when somebody else has them."""
        while self._owners.setdefault(name, owner) is not owner:
            name += "+"
        return name

    def let_go(self, owner: object) -> None:
        """Others may have what that one had."""
        self._owners = {name: other for name, other in self._owners.items() if other is not owner}


class SimulatedDisk:
    """Of one task."""

    def __init__(self, files: SimulatedFiles, name: str) -> None:
        self._files = files
        self._name = name

    def _taken(self) -> str:
        return self._files.take(self._name, self)

    def exists(self) -> bool:
        """Whether there are files of before."""
        return self._taken() in self._files.writes

    def open(self) -> "SimulatedEngine":
        """The engine, with what was in it."""
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
        """Let others have the files."""
        self._files.let_go(self)


class SimulatedEngine:
    """A sorted map of bytes."""

    def __init__(self, writes: list[list[tuple[bytes, bytes | None]]]) -> None:
        self._writes: list[list[tuple[bytes, bytes | None]]] | None = writes
        self._values = {key: value for write in writes for key, value in write}
        self.get: Callable[[bytes], bytes | None] = self._values.get

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """All of these values or none of them."""
        assert self._writes is not None, "it is closed"
        made = list(changes)
        self._writes.append(made)
        self._values.update(made)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that begin so, and their values, in order, as of now."""
        yield from sorted((k, v) for k, v in self._values.items() if v is not None and k.startswith(prefix))

    def about(self) -> int:
        """How many keys there are."""
        return sum(value is not None for value in self._values.values())

    def close(self) -> None:
        """Use it no more."""
        self._writes = None
