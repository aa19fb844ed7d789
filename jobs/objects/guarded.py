"""A store that a worker writes to only while nobody can have started its pipeline over."""

from collections.abc import Callable, Iterator

from onefold.jobs.protocols import Mark, Objects


class Guarded:
    """Another store, with a question before each write: `still` raises when the worker's session has ended. Between the question
    and the write a process may sleep: what it writes then is an object that nothing names, which the judge says.
    """

    def __init__(self, store: Objects, still: Callable[[], None]) -> None:
        self._store, self._still = store, still

    def put(self, name: str, content: bytes) -> bool:
        """See `Objects`."""
        self._still()
        return self._store.put(name, content)

    def put_stream(self, name: str, parts: Iterator[bytes]) -> int:
        """See `Objects`."""
        self._still()
        return self._store.put_stream(name, parts)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See `Objects`."""
        return self._store.get(name, start, end)

    def size(self, name: str) -> int | None:
        """See `Objects`."""
        return self._store.size(name)

    def delete(self, name: str) -> None:
        """See `Objects`."""
        self._still()
        self._store.delete(name)

    def ids(self, prefix: str = "") -> Iterator[str]:
        """See `Objects`."""
        return self._store.ids(prefix)

    def mark(self, name: str) -> None:
        """See `Objects`."""
        self._still()
        self._store.mark(name)

    def unmark(self, name: str) -> None:
        """See `Objects`."""
        self._still()
        self._store.unmark(name)

    def marks(self) -> Iterator[Mark]:
        """See `Objects`."""
        return self._store.marks()
