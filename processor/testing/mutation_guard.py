"""The check that a handler does not change a given state: the processor may process an event again from the same state."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from onefold.processor.core.abc import Codec
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Event


class Watched:
    """A topology with checked handlers.

    Attributes:
        topology: the topology for a task, with the checks.
    """

    def __init__(self, topology: Topology, codec: Codec) -> None:
        self._encode = codec.encode_state
        self._changed = ""
        tick = topology.tick

        def handle(state: Any, event: Event) -> Any:
            return self._same(
                state, lambda: topology.handle(state, event), f"{event.topic}/{event.partition}/{event.offset}"
            )

        def on_tick(key: str, state: Any, at_ms: int) -> Any:
            assert tick is not None, "only a tick ticks"
            return self._same(state, lambda: tick.handle(key, state, at_ms), f"the tick of {at_ms}, key {key}")

        watched_tick = None if tick is None else replace(tick, handle=on_tick)
        self.topology = replace(topology, handle=handle, tick=watched_tick)

    def check(self) -> None:
        """Raise AssertionError, with the record, if a handler has changed a given state."""
        assert not self._changed, (
            f"the handler changed the state that it was given, at {self._changed}: return a new one. The records were processed "
            f"again, as after an aborted transaction, from the state before them"
        )

    def _same(self, state: Any, call: Callable[[], Any], where: str) -> Any:
        before = None if state is None else self._encode(state)
        try:
            return call()
        finally:
            if before is not None and self._encode(state) != before:
                self._changed = self._changed or where
