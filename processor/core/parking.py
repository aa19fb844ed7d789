"""Parking: with `on_dead_letter="park"`, a key's events wait behind a rejected event until a replay or drop of the latter.

The state of a parked key is a `Parked`: the handler's state, and two numbers. The rejected record is a dead letter with ticket
0. Each later event of the key is a dead letter with the next ticket, and the handler does not see the event. `onefold
dead-letters` replays the letters in the order of their tickets. If a replay has the next ticket, the handler gets the event,
and the following ticket becomes the next. After the last ticket the key is no longer parked. Any other replay becomes a dead
letter again, with the same ticket, so the order of the key does not depend on the command.

A ticket is valid in one life of a pipeline. After a reset, a replay from before counts as an ordinary event.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from onefold.error_codes import Code
from onefold.processor.core.errors import Rejected
from onefold.processor.core.owner import PIPELINE_HEADER
from onefold.processor.core.topology import EmitChange, Tick, Topology
from onefold.processor.core.values import (
    DROPPED_HEADER,
    PARKED_HEADER,
    REPLAYS_HEADER,
    DeadLetter,
    Event,
    Outputs,
    Record,
)

# The first bytes of a parked key's state. A handler's state is JSON, which never begins with these bytes.
_PARKED = b"parked "


class Ticket(NamedTuple):
    """The turn of a dead letter of a parked key.

    Attributes:
        number: 0 for the record that parked the key.
        refused: True if the record itself was rejected, False if the record waits.
        at: the place of the record that parked the key.
        key: the state key.
    """

    number: int
    refused: bool
    at: str
    key: str

    def encode(self) -> bytes:
        """Return the value of `PARKED_HEADER`."""
        return f"{self.number} {'refused' if self.refused else 'waits'} {self.at} {self.key}".encode()

    @staticmethod
    def decode(data: bytes | None) -> "Ticket | None":
        """Return the ticket, or None if the bytes are invalid."""
        try:
            number, refused, at, key = (data or b"").decode().split(" ", 3)
            return Ticket(int(number), refused == "refused", at, key)
        except ValueError:
            return None


class Parked(NamedTuple):
    """The state of a parked key.

    Attributes:
        state: the handler's state; None: the key has no state.
        at: the place of the record that parked the key.
        next: the next ticket to be processed.
        last: the last assigned ticket.
    """

    state: Any
    at: str
    next: int = 0
    last: int = 0

    @property
    def waiting(self) -> int:
        """The number of waiting events, without the rejected event of ticket 0."""
        return self.last + 1 - max(self.next, 1)

    def called(self, state: Any) -> Any:
        """Return the key's state after the next ticket was processed: parked, unless the ticket was the last."""
        return state if self.next == self.last else self._replace(state=state, next=self.next + 1)


class Waits(Rejected):
    """The key of an event is parked."""

    def __init__(self, event: Event) -> None:
        super().__init__("its key is parked", Code.REJECTED)
        self.event = event


class Taken(NamedTuple):
    """The result of a rejected record: a letter, a change of the key, or both.

    Attributes:
        before, after: the states of the key; the same object if the state did not change.
        idle: whether the record was processed without a change of the handler's state.
    """

    letter: DeadLetter | None
    key: str = ""
    before: Any = None
    after: Any = None
    outputs: Outputs = ()
    idle: bool = False


def parking(topology: Topology) -> Topology:
    """Return a topology for parked states: the handler rejects events of a parked key, other functions get the inner state."""
    handle, emit_change, tick = topology.handle, topology.emit_change, topology.tick

    def handle_or_wait(state: Any, event: Event) -> tuple[Any, Outputs]:
        if type(state) is Parked:
            raise Waits(event)
        return handle(state, event)

    return replace(
        topology,
        handle=handle_or_wait,
        emit_change=None if emit_change is None else _emitting(emit_change),
        tick=None if tick is None else _ticking(tick),
    )


def inner(state: Any) -> Any:
    """Return the handler's state of a key, parked or not."""
    return state.state if type(state) is Parked else state


def _emitting(emit_change: EmitChange) -> EmitChange:
    def emit(key: str, before: Any, after: Any) -> Outputs:
        before, after = inner(before), inner(after)
        return () if before is after else emit_change(key, before, after)

    return emit


def _ticking(tick: Tick) -> Tick:
    """Wrap a tick's functions. A tick is no event of a key, so a tick does not wait."""

    def handle(key: str, state: Any, at_ms: int) -> tuple[Any, Outputs]:
        if type(state) is not Parked:
            return tick.handle(key, state, at_ms)
        if state.state is None:
            return state, ()
        after, outputs = tick.handle(key, state.state, at_ms)
        return (state if after is state.state else state._replace(state=after)), outputs

    def due(state: Any) -> int | None:
        assert tick.due is not None
        state = inner(state)
        return None if state is None else tick.due(state)

    return replace(tick, handle=handle, due=None if tick.due is None else due)


class Parking:
    """The treatment of rejected records.

    Args:
        topology: the pipeline's own, with the handler that expects no parked state.
        signature: the signature of the pipeline in this life.
        key_of: returns the state key of a record. None: the record has no known key and parks no key.
    """

    def __init__(self, topology: Topology, signature: bytes, key_of: Callable[[Record], str | None]) -> None:
        self._handle = topology.handle
        self._signature = signature
        self._key_of = key_of

    def decoding(
        self, decode: Callable[[Record], Any], state_of: Callable[[str], Any], ignores_tombstones: bool
    ) -> Callable[[Record], Any]:
        """Return a decoder that rejects the replay of a parked event that has lost its state key. Without the rejection, the
        key's other events would wait for the ticket for ever.

        Args:
            state_of: see `take`.
        """

        def decode_in_turn(record: Record) -> Any:
            value = decode(record)
            ticket, _ = self._ticket(record)
            if ticket is None:
                return value
            key = None if value is None and ignores_tombstones else self._key_of(record)
            state = state_of(ticket.key)
            if key != ticket.key and type(state) is Parked and state.at == ticket.at:
                now = "it has no state key now" if key is None else f"its state key is {key} now"
                raise Rejected(f"{now}, and it was parked as an event of {ticket.key}", Code.REJECTED)
            return value

        return decode_in_turn

    def take(self, record: Record, reason: Rejected, state_of: Callable[[str], Any]) -> Taken:
        """Process a rejected record.

        Args:
            state_of: returns the state of a key after all earlier records.
        """
        ticket, is_drop = self._ticket(record)
        waits = isinstance(reason, Waits)
        key = ticket.key if ticket is not None and not waits else self._key_of(record)
        if ticket is not None and ticket.key != key:
            ticket = None  # another version of the pipeline gave the event a different key
        if key is None:
            return Taken(DeadLetter(record, str(reason)))
        state = state_of(key)
        if type(state) is not Parked:
            if is_drop:
                return Taken(None, idle=True)
            at = record.source.decode()
            letter = DeadLetter(record, str(reason), Ticket(0, True, at, key).encode())
            return Taken(letter, key, state, Parked(state, at))
        if ticket is None or ticket.at != state.at:
            last = state.last + 1
            return Taken(_waiting(record, Ticket(last, False, state.at, key)), key, state, state._replace(last=last))
        if ticket.number != state.next:
            return Taken(_waiting(record, ticket._replace(refused=False)))
        if is_drop:
            return Taken(None, key, state, state.called(state.state), idle=True)
        if isinstance(reason, Waits):
            try:
                after, outputs = self._handle(state.state, reason.event)
            except Rejected as again:
                reason = again
            else:
                idle = after is state.state and not outputs
                return Taken(None, key, state, state.called(after), outputs, idle)
        return Taken(DeadLetter(record, str(reason), ticket._replace(refused=True).encode()))

    def _ticket(self, record: Record) -> tuple[Ticket | None, bool]:
        """Return the ticket of a replay or drop from this life, and whether the record is a drop."""
        found = None if record.envelope is None else record.envelope.headers()
        headers = dict(found or ())
        if REPLAYS_HEADER not in headers or headers.get(PIPELINE_HEADER) != self._signature:
            return None, False
        return Ticket.decode(headers.get(PARKED_HEADER)), DROPPED_HEADER in headers


def _waiting(record: Record, ticket: Ticket) -> DeadLetter:
    return DeadLetter(record, f"waits behind {ticket.at}", ticket.encode())


def is_parked(data: bytes) -> bool:
    """Return whether the bytes are the state of a parked key."""
    return data.startswith(_PARKED)


def head_bytes(data: bytes) -> int:
    """Return the number of leading bytes that describe the parking."""
    return data.index(b"\n") + 1 if is_parked(data) else 0


def encoding(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return an encoder of states, including parked states."""

    def encode_both(state: Any) -> bytes:
        if type(state) is not Parked:
            return encode(state)
        head = json.dumps({"at": state.at, "next": state.next, "last": state.last}).encode()
        return _PARKED + head + b"\n" + (b"" if state.state is None else encode(state.state))

    return encode_both


def decoding(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a decoder of states, including parked states. The decoder raises ValueError for an invalid head."""

    def decode_both(data: bytes) -> Any:
        if not is_parked(data):
            return decode(data)
        head, _, rest = data.removeprefix(_PARKED).partition(b"\n")
        body = json.loads(head)
        return Parked(decode(rest) if rest else None, str(body["at"]), int(body["next"]), int(body["last"]))

    return decode_both
