"""A store for readers, such as the dashboard and `sheet open`, without methods to write or delete."""

from __future__ import annotations

from onefold.jobs.protocols import Objects


class ReadOnly:
    """Another store, limited to reading contents and sizes."""

    def __init__(self, store: Objects) -> None:
        self._get, self._size = store.get, store.size

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See `Objects`."""
        return self._get(name, start, end)

    def size(self, name: str) -> int | None:
        """See `Objects`."""
        return self._size(name)
