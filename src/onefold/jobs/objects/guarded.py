"""A store that a worker, or a reset, writes to only while nobody else can have started its pipeline over."""

from collections.abc import Callable, Iterator

from onefold.jobs.protocols import Mark, Objects


class Guarded:
    """Another store, with a question before each write: `still` raises when the session of whoever writes has ended.

    Between the question and the write a process may sleep, and a store takes what it is given. So the one call in which it slept
    reaches the store after a reset:

        put       leaves an object that nothing names, or that is named by then and is the same: names follow from content
        delete    may remove what the new run has under the same name: an upload that was discarded before `reset --inputs`, and
                  was imported again under the same request since; of a reset, a snapshot that was made anew
        unmark    leaves such an upload without its mark: if its client does not complete it, no sweep finds it

    The judge names each of these objects.
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
