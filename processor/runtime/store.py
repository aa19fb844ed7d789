"""The states of one task, in memory, as of the last committed transaction. The changelog is their durable form."""

from collections.abc import ItemsView, Mapping
from typing import Any

from onefold.processor.core.values import Change


class Store:
    """State by key."""

    def __init__(self, states: dict[str, Any] | None = None) -> None:
        self._states = states or {}
        #: The state of a key, or None. Bound once: it is called for every record.
        self.get = self._states.get

    def items(self) -> ItemsView[str, Any]:
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
