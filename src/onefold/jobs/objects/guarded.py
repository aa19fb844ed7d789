"""A store with a session check before each write, for workers and resets: no write after another reset of the pipeline."""

from collections.abc import Callable, Iterator

from onefold.jobs.protocols import Mark, Objects


class Guarded:
    """Another store with a check before each write: `still` raises if the session of the writing process has ended.

    The process may be paused between the check and the write. The one interrupted call then reaches the store after a reset:

        put       Leaves an unreferenced object, or an object equal to a new object, because the name follows from the content.
        delete    May remove a new object of the same name: an upload discarded before `reset --inputs` and imported again
                  under the same request, or, by a paused reset, a recreated snapshot.
        unmark    Leaves a new upload of the same name without its expiration marker. If its client does not complete the
                  upload, garbage collection does not find the object.

    The verifier reports each of these objects.
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
