"""Minimal replicas of one task with a decision log and a changelog, as a model for exhaustive search.

Two inputs have a record or two. The handler counts the records, so correct replicas with equally many records have equal
states. A sent proposal arrives late, twice, or never; a crash loses a replica's memory.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from onefold.processor.core.abc import PartitionIdentity
from onefold.processor.core.decision import (
    DecisionHistory,
    InputPosition,
    LogPosition,
    Proposal,
    ProposalKind,
    Range,
    TaskPosition,
    begin,
)
from onefold.processor.core.decision_log import ProposalBody
from onefold.processor.core.errors import Refused
from onefold.processor.core.values import RecordCounts
from onefold.processor.io.proposals import MsgpackProposals
from tests.support.previous_proposals import PreviousProposals

# Plain values, because an Enum is hashed in Python code, and every state is hashed.
STEP, OPEN, CLOSE = ProposalKind.STEP.value, ProposalKind.OPEN.value, ProposalKind.CLOSE.value
At = tuple[int, int]


class Sent(NamedTuple):
    """A proposal: range of the inputs, state before, and state after."""

    kind: str
    version: int
    start: At
    end: At
    base: int
    state: int
    who: str

    def __str__(self) -> str:
        reads = f" {self.start}..{self.end} -> {self.state}" if self.kind == STEP else ""
        return f"{self.kind} {self.version}{reads} by {self.who}"


class View(NamedTuple):
    """Knowledge of a reader: position of the task, state, and decisions so far."""

    version: int = -1
    at: At = (0, 0)
    closed: bool = True
    state: int = 0
    history: tuple[Sent, ...] = ()


Log = tuple[Sent, ...]
#: `(view, log, offset, the reader's own last proposal) -> view` reads one more record. None: another replica's record.
Take = Callable[[View, Log, int, Sent | None], View]


def position_of(view: View) -> TaskPosition | None:
    inputs = {name: InputPosition(name, at) for name, at in zip(("left", "right"), view.at, strict=True)}
    return None if view.version < 0 else TaskPosition(view.version, inputs, view.closed)


@cache
def proposal_of(sent: Sent) -> Proposal:
    """Decode the record as a reader does. Replica r1 writes the format of 0.2, so every schedule covers a rolling upgrade."""
    ranges = zip(("left", "right"), sent.start, sent.end, strict=True)
    inputs = {name: Range(name, start, end) for name, start, end in ranges}
    codec = PreviousProposals() if sent.who == "r1" else MsgpackProposals()
    body = ProposalBody(RecordCounts(), [], codec.encode_writes([]))
    record = MsgpackProposals().decode(
        codec.encode(Proposal(0, sent.version, inputs, sent.who, body, ProposalKind(sent.kind)))
    )
    assert isinstance(record, Proposal)
    return record


def adopted(view: View, position: TaskPosition, sent: Sent) -> View:
    at = (position.inputs["left"].offset, position.inputs["right"].offset)
    return View(position.version, at, position.closed, sent.state, (*view.history, sent))


@cache
def take(view: View, log: Log, offset: int, own: Sent | None) -> View:
    """Take by the product's own rule."""
    history = DecisionHistory(0, LogPosition("log", offset, position_of(view)))
    decision = history.take(offset, proposal_of(log[offset]))
    return view if decision is None else adopted(view, decision.position, log[offset])


class Replica(NamedTuple):
    """One process. Only a careless or proud replica uses `own`, the last proposal, and `ahead`, the position of the consumer."""

    cursor: int = 0
    view: View = View()
    own: Sent | None = None
    ahead: At = (0, 0)


class Changelog(NamedTuple):
    """Changelog of the task: version, state, and whether the log has the task now. Transactions are atomic."""

    version: int = 0
    at: At = (0, 0)
    state: int = 0
    lent: bool = False
    transactions: tuple[Sent, ...] = ()


class World(NamedTuple):
    """State of the model, with the remaining numbers of events of each kind."""

    log: Log
    replicas: tuple[Replica, ...]
    changelog: Changelog
    flying: tuple[Sent, ...] = ()
    proposals: int = 0
    crashes: int = 0
    duplicates: int = 0
    shifts: int = 0


class Model(NamedTuple):
    """Behaviour of the replicas. Most faults are the second replica's.

    Attributes:
        take: reads a record of the log.
        begin: start position of a replica.
        ends: number of records of left and of right.
        wrong_handler: the second replica computes different results.
        careless: the second replica reads on at the consumer's position, whatever was decided.
        reopens: the second replica opens the log after a close without the changelog.
        publishes: the first replica writes decisions to the changelog, as read.
        proud: replicas remember their proposals, and pass them to `take`.
        alike: all replicas behave the same, so states that differ only by replica numbers are one state.
    """

    take: Take = take
    begin: Callable[[PartitionIdentity, LogPosition | None], LogPosition] = begin
    ends: At = (2, 1)
    wrong_handler: bool = False
    careless: bool = False
    reopens: bool = False
    publishes: bool = False
    proud: bool = False
    alike: bool = False

    def start(self, replicas: int = 2, **budgets: int) -> World:
        """Start with a log open at version 1. If the log may be closed, the opening was sent twice."""
        opening = _empty(OPEN, 1, (0, 0), 0)
        flying = (opening,) if budgets.get("shifts") else ()
        return World((opening,), (Replica(),) * replicas, Changelog(1, lent=True), flying, **budgets)

    # --- what may happen next

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        steps = self._steps(world)
        return ((name, renamed(after)) for name, after in steps) if self.alike else steps

    def _steps(self, world: World) -> Iterator[tuple[str, World]]:
        for number in range(len(world.replicas)):
            yield from self._read(world, number)
            if world.crashes:
                yield from self._crash(world, number)
            if world.proposals:
                yield from self._propose(world, number)
            yield from self._shift(world, number)
        for at, sent in enumerate(world.flying):
            arrived = world._replace(log=(*world.log, sent))
            yield f"{sent} arrives", arrived._replace(flying=world.flying[:at] + world.flying[at + 1 :])
            if world.duplicates:
                yield f"{sent} arrives, to be sent again", arrived._replace(duplicates=world.duplicates - 1)
        if not world.changelog.lent:
            yield from self._elastic(world)

    def _read(self, world: World, number: int) -> Iterator[tuple[str, World]]:
        replica = world.replicas[number]
        if replica.cursor < len(world.log):
            view = self.take(replica.view, world.log, replica.cursor, replica.own)
            ahead = max(view.at, replica.ahead) if self.careless else (0, 0)
            after = replica._replace(cursor=replica.cursor + 1, view=view, ahead=ahead)
            yield f"r{number} reads {world.log[replica.cursor]}", _with(world, number, after)

    def _crash(self, world: World, number: int) -> Iterator[tuple[str, World]]:
        """Crash and restart, with the stored position or none, in a complete log or one with a deleted beginning."""
        cursor, view = world.replicas[number][:2]
        fewer = world._replace(crashes=world.crashes - 1)
        for start in {0, cursor}:
            for stored in (None, LogPosition("log", cursor, position_of(view))):
                try:
                    offset = self.begin(PartitionIdentity("log", start, len(world.log)), stored).offset
                except Refused:
                    continue
                after = Replica(
                    offset, view if stored else View(), None, view.at if stored and self.careless else (0, 0)
                )
                yield f"r{number} crashes, and begins at offset {offset}", _with(fewer, number, after)

    def _propose(self, world: World, number: int) -> Iterator[tuple[str, World]]:
        replica = world.replicas[number]
        for sent in self.choices(replica, number):
            ahead = max(sent.end, replica.ahead) if self.careless else (0, 0)
            after = replica._replace(own=sent if self.proud else None, ahead=ahead)
            sending = world._replace(flying=tuple(sorted((*world.flying, sent))), proposals=world.proposals - 1)
            yield f"r{number} proposes {sent}", _with(sending, number, after)

    def choices(self, replica: Replica, number: int) -> Iterator[Sent]:
        """Propose one more record of left, of right, or all records."""
        view, who = replica.view, f"r{number}"
        if view.closed:
            return
        (left, right) = start = replica.ahead if self.careless and number == 1 else view.at
        for end in sorted({(left + 1, right), (left, right + 1), self.ends} - {start}, reverse=True):
            if end[0] <= self.ends[0] and end[1] <= self.ends[1]:
                state = view.state + sum(end) - sum(start)
                state = -1 if self.wrong_handler and number == 1 else state
                yield Sent(STEP, view.version, start, end, view.state, state, who)

    def _shift(self, world: World, number: int) -> Iterator[tuple[str, World]]:
        """Move the task from the changelog to the log, and back."""
        view, changelog = world.replicas[number].view, world.changelog
        close = bool(view.history) and view.history[-1].kind == CLOSE
        sent = []
        if changelog.lent and changelog.version > view.version:
            sent.append(_empty(OPEN, changelog.version, changelog.at, changelog.state))
        if close and self.reopens and number == 1:
            sent.append(_empty(OPEN, view.version, view.at, view.state))
        if not view.closed:
            sent.append(_empty(CLOSE, view.version, view.at, view.state))
        for one in sent:
            if world.shifts and one not in world.flying:
                flying = tuple(sorted((*world.flying, one)))
                yield f"r{number} proposes {one}", world._replace(shifts=world.shifts - 1, flying=flying)
        if self.publishes and number == 0 and changelog.lent and view.version > changelog.version:
            copy = changelog._replace(version=view.version, at=view.at, state=view.state)
            yield f"r{number} publishes version {view.version}", world._replace(changelog=copy)
        if close and changelog.lent and view.version >= changelog.version:
            back = Changelog(view.version, view.at, view.state, False, changelog.transactions)
            yield f"r{number} takes version {view.version} back to the changelog", world._replace(changelog=back)

    def _elastic(self, world: World) -> Iterator[tuple[str, World]]:
        version, (left, right), state, _, transactions = world.changelog
        if world.shifts:
            # For example by another release: the state differs from the one that the log's replicas knew.
            move = _empty(CLOSE, version, (left, right), state)._replace(state=state + 100, who="the changelog")
            gone = Changelog(version + 1, (left, right), move.state, True, (*transactions, move))
            fewer = world._replace(changelog=gone, shifts=world.shifts - 1)
            yield f"the changelog hands over at version {version + 1}", fewer
        if left < self.ends[0]:
            end = (left + 1, right)
            step = Sent(STEP, version, (left, right), end, state, state + 1, "the changelog")
            done = Changelog(version + 1, end, state + 1, False, (*transactions, step))
            yield f"{step}", world._replace(changelog=done)

    # --- what has to hold

    def fault(self, world: World) -> str:
        """Fault of a state, or ""."""
        outside = prefix(self.take, world.log, len(world.log))
        before = prefix(self.take, world.log, max(0, len(world.log) - 1))
        if outside.history[: len(before.history)] != before.history:
            return "the history was rewritten"
        for number, replica in enumerate(world.replicas):
            wanted = prefix(self.take, world.log, replica.cursor)
            if replica.view != wanted:
                return f"r{number} believes {_told(replica.view)}; another reader {_told(wanted)}"
        if wrong := timeline(world.changelog.transactions, outside.history):
            return wrong
        for number, replica in enumerate(world.replicas):
            if not (self.careless and number == 1) and not alone(self, world.log, replica, number):
                return f"r{number} alone makes no progress"
        return ""


@cache
def prefix(take: Take, log: Log, length: int) -> View:
    """View of a reader that proposes nothing."""
    return take(prefix(take, log, length - 1), log[:length], length - 1, None) if length else View()


@cache
def timeline(transactions: tuple[Sent, ...], decided: tuple[Sent, ...]) -> str:
    """Check transactions of the changelog and decisions of the log by version: each input once, on the state before it."""
    at, state, version = (0, 0), 0, -1
    for sent in sorted((*transactions, *decided), key=lambda sent: (sent.version, sent.kind != OPEN)):
        if sent.kind != OPEN and sent.version <= version:
            return f"version {sent.version} was decided twice"
        if sent.start != at:
            return f"{sent} starts at {sent.start}, and {at} comes next"
        if sent.base != state:
            return f"{sent} was computed on state {sent.base}, and the state was {state}"
        at, state = sent.end, sent.state
        version = version if sent.kind == OPEN else sent.version
    return ""


@cache
def alone(model: Model, log: Log, replica: Replica, number: int) -> bool:
    """Whether a replica gets a proposal accepted while all other replicas pause, in any state."""
    view = replica.view
    for offset in range(replica.cursor, len(log)):
        view = model.take(view, log, offset, replica.own)
    sent = next(model.choices(replica._replace(view=view), number), None)
    return sent is None or model.take(view, (*log, sent), len(log), sent).version > view.version


def renamed(world: World) -> World:
    """Rename replicas in the order of their proposals; replicas without proposals come last, sorted."""
    numbers = range(len(world.replicas))
    proposers = list(dict.fromkeys(sent.who for sent in (*world.log, *world.flying)))
    places = {f"r{number}": len(proposers) for number in numbers} | {who: at for at, who in enumerate(proposers)}
    order = sorted(numbers, key=lambda number: (places[f"r{number}"], world.replicas[number]))
    if order == list(numbers):
        return world
    names = {f"r{old}": f"r{new}" for new, old in enumerate(order)}

    def of(sents: tuple[Sent, ...]) -> tuple[Sent, ...]:
        return tuple(sent._replace(who=names.get(sent.who, sent.who)) for sent in sents)

    replicas = [world.replicas[number] for number in order]
    return world._replace(
        log=of(world.log),
        replicas=tuple(one._replace(view=one.view._replace(history=of(one.view.history))) for one in replicas),
        flying=tuple(sorted(of(world.flying))),
    )


def _empty(kind: str, version: int, at: At, state: int) -> Sent:
    return Sent(kind, version, at, at, state, state, "a replica")


def _told(view: View) -> str:
    return f"in version {view.version} at {view.at}, state {view.state}" if view.history else "that nothing was opened"


def _with(world: World, number: int, replica: Replica) -> World:
    replicas = (*world.replicas[:number], replica, *world.replicas[number + 1 :])
    return world._replace(replicas=replicas)
