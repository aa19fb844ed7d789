"""Replicas of one task around a decision log and a changelog, as small as they can be: a model to be searched, not a product.

Two inputs have a record or two. A handler adds up how many it read; so honest replicas that read equally many have equal
results. What is on the way to the log arrives late, twice, or never; a crash takes a replica's memory.
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

# An Enum is hashed in Python, and every state is hashed.
STEP, OPEN, CLOSE = ProposalKind.STEP.value, ProposalKind.OPEN.value, ProposalKind.CLOSE.value
At = tuple[int, int]


class Sent(NamedTuple):
    """A proposal: from where to where it reads, the state that it was computed on, and the state after it."""

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
    """What a reader knows: where the task stands, its state, and what came true."""

    version: int = -1
    at: At = (0, 0)
    closed: bool = True
    state: int = 0
    history: tuple[Sent, ...] = ()


Log = tuple[Sent, ...]
#: `(view, log, offset, the reader's own last proposal) -> view`: one more record is read. None and it is somebody else's.
Take = Callable[[View, Log, int, Sent | None], View]


def position_of(view: View) -> TaskPosition | None:
    inputs = {name: InputPosition(name, at) for name, at in zip(("left", "right"), view.at, strict=True)}
    return None if view.version < 0 else TaskPosition(view.version, inputs, view.closed)


@cache
def proposal_of(sent: Sent) -> Proposal:
    """As a reader decodes its record. The replica r1 writes the format of 0.2: a rolling upgrade is every schedule."""
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
    """By the rule itself."""
    history = DecisionHistory(0, LogPosition("log", offset, position_of(view)))
    decision = history.take(offset, proposal_of(log[offset]))
    return view if decision is None else adopted(view, decision.position, log[offset])


class Replica(NamedTuple):
    """One process. Only a careless one takes any notice of `own`, its last proposal, and `ahead`, where its consumer stands."""

    cursor: int = 0
    view: View = View()
    own: Sent | None = None
    ahead: At = (0, 0)


class Changelog(NamedTuple):
    """The task's changelog: its version and state, and whether the log has the task now. Its transactions are atomic."""

    version: int = 0
    at: At = (0, 0)
    state: int = 0
    lent: bool = False
    transactions: tuple[Sent, ...] = ()


class World(NamedTuple):
    """All there is, and how often what may still happen."""

    log: Log
    replicas: tuple[Replica, ...]
    changelog: Changelog
    flying: tuple[Sent, ...] = ()
    proposals: int = 0
    crashes: int = 0
    duplicates: int = 0
    shifts: int = 0


class Model(NamedTuple):
    """What the replicas do. The second one may be wrong in several ways.

    Attributes:
        take: how a record of the log is read.
        begin: where a replica may begin to read.
        ends: how many records there are of left and of right.
        wrong_handler: the second replica's results are other ones.
        careless: it goes on reading where its consumer stands, whatever was decided.
        reopens: it opens the log after a close, and does not ask the changelog.
        publishes: the first one writes into the changelog what was decided, as it reads it.
        proud: replicas remember what they proposed, and `take` is told.
        alike: all replicas do the same. States that differ by their numbers alone are one state; a schedule renames them.
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
        """The log is open at version 1. Where it may also be closed, the opening was sent twice."""
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
        """And begin again: with what was stored last or with nothing, in a whole log or in one whose beginning is deleted."""
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
        """One more record of left, of right, or all there is."""
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
        """Out of the changelog into the log, and back."""
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
            # By another release, say: the state is no longer the one that the log's replicas knew.
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
        """What is wrong in a state, "" when nothing."""
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
    """What a reader knows that has no part in it."""
    return take(prefix(take, log, length - 1), log[:length], length - 1, None) if length else View()


@cache
def timeline(transactions: tuple[Sent, ...], decided: tuple[Sent, ...]) -> str:
    """By version, the changelog's transactions and what the log decided: every input once, each on the state before it."""
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
    """Whether a replica gets its version decided while all others stand still, whatever they have done so far."""
    view = replica.view
    for offset in range(replica.cursor, len(log)):
        view = model.take(view, log, offset, replica.own)
    sent = next(model.choices(replica._replace(view=view), number), None)
    return sent is None or model.take(view, (*log, sent), len(log), sent).version > view.version


def renamed(world: World) -> World:
    """The same world with replicas in the order in which proposals name them; those without a proposal come last, sorted."""
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
