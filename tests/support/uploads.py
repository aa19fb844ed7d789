"""Clients, a garbage collection and a worker over one uploaded object, in steps: a step is one call of the store or of Kafka.

The programs are the real code of `onefold.jobs.apps.sheets.uploads`, or a wrong version that a test must detect. A step
runs a program from the beginning with the answers so far, and makes one more call. So a state is plain data, and all orders
of steps can be searched.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

from onefold.config.errors import UserError
from onefold.jobs.apps.sheets.uploads import KeepOrDiscard, Message, create, import_payload, sweep
from onefold.jobs.protocols import Effect, Job, Mark, Missing, Objects, Place

CONTENT = b'[1,1,"n","12.5"]\n[7,2,null]\n'
_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

Produce = Callable[[Iterable[Message]], None]
Program = Callable[[Objects, Produce], object]


def upload(objects: Objects, produce: Produce) -> None:
    """The real client; the error for the client does not matter to the store."""
    with suppress(UserError):
        import_payload(objects, produce, "sheet-1", "request-1", BytesIO(CONTENT))


@dataclass(frozen=True)
class Decision:
    """A job of `sheets.objects`, and whether it was done at least once."""

    number: int
    keep: bool
    done: bool = False


@dataclass(frozen=True)
class World:
    """Persistent state: objects, expiration markers, and the handler's decisions about the one upload."""

    objects: frozenset[tuple[str, bytes]] = frozenset()
    marks: frozenset[str] = frozenset()
    decided: str = ""
    entries: int = 0
    refusals: int = 0
    jobs: tuple[Decision, ...] = ()

    def folded(self, action: bytes) -> "World":
        """State after one more record of `sheets.uploads`, by the design's rules."""
        if b'"complete"' in action:
            if self.decided == "completed":
                return self
            if self.decided == "discarded":
                return replace(self, refusals=min(2, self.refusals + 1))
            return replace(self, decided="completed", entries=self.entries + 1)._with_job(keep=True)
        assert b'"discard"' in action
        if self.decided == "completed":
            return self._with_job(keep=True)
        return replace(self, decided="discarded")._with_job(keep=False)

    def _with_job(self, keep: bool) -> "World":
        return replace(self, jobs=(*self.jobs, Decision(len(self.jobs) + 1, keep)))


class _Paused(BaseException):
    """Raised instead of the next call."""


class Calls:
    """A store and a producer that repeat earlier answers, make some more calls, and then stop the caller."""

    def __init__(self, world: World, answers: tuple[Any, ...] = (), more: int = 1_000) -> None:
        self.world, self.answers, self._at, self._more = world, answers, 0, more

    def _call(self, make: Callable[[], Any]) -> Any:
        if self._at == len(self.answers):
            if not self._more:
                raise _Paused
            self._more -= 1
            self.answers = (*self.answers, make())
        self._at += 1
        return self.answers[self._at - 1]

    def produce(self, messages: Iterable[Message]) -> None:
        """Produce all messages atomically."""
        given = tuple(messages)

        def make() -> None:
            for _, _, value in given:
                self.world = self.world.folded(value)

        self._call(make)

    def put(self, name: str, content: bytes) -> bool:
        def make() -> bool:
            there = name in dict(self.world.objects)
            if not there:
                self.world = replace(self.world, objects=self.world.objects | {(name, content)})
            return not there

        return bool(self._call(make))

    def put_stream(self, name: str, parts: Iterator[bytes]) -> int:
        content = b"".join(parts)
        self.put(name, content)
        return len(content)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        raise Missing(name)

    def size(self, name: str) -> int | None:
        def make() -> int | None:
            found = dict(self.world.objects).get(name)
            return None if found is None else len(found)

        answer: int | None = self._call(make)
        return answer

    def delete(self, name: str) -> None:
        def make() -> None:
            left = frozenset(one for one in self.world.objects if one[0] != name)
            self.world = replace(self.world, objects=left)

        self._call(make)

    def ids(self, prefix: str = "") -> Iterator[str]:
        return iter(sorted(dict(self.world.objects)))

    def mark(self, name: str) -> None:
        self._call(lambda: self._marks(self.world.marks | {name}))

    def unmark(self, name: str) -> None:
        self._call(lambda: self._marks(self.world.marks - {name}))

    def marks(self) -> Iterator[Mark]:
        return iter([Mark(name, _LONG_AGO) for name in self._call(lambda: tuple(sorted(self.world.marks)))])

    def _marks(self, marks: frozenset[str]) -> None:
        self.world = replace(self.world, marks=marks)


@dataclass(frozen=True)
class Actor:
    """A process that runs a program.

    Attributes:
        answers: answers to the calls of this run; None: no run.
        runs: number of further runs.
    """

    answers: tuple[Any, ...] | None = None
    runs: int = 0


@dataclass(frozen=True)
class Everybody:
    """Complete state: the persistent state, and the progress of each actor. `at`: number of the worker's job."""

    world: World
    clients: tuple[Actor, ...]
    sweeper: Actor
    worker: Actor = Actor()
    at: int = 0


@dataclass(frozen=True)
class Cast:
    """Programs of the actors; tests also use wrong ones."""

    client: Program = upload
    sweep: Program = lambda objects, produce: sweep(objects, produce, 0)
    effect: Callable[[Objects], Effect] = KeepOrDiscard

    def steps(self, now: Everybody) -> Iterator[tuple[str, Everybody]]:
        """Possible next steps. After a crash, a program begins again, or never."""
        for at, client in enumerate(now.clients):
            for word, world, actor in _steps(client, self.client, now.world):
                clients = (*now.clients[:at], actor, *now.clients[at + 1 :])
                yield f"client {at}: {word}", replace(now, world=world, clients=clients)
        for word, world, actor in _steps(now.sweeper, self.sweep, now.world):
            yield f"sweep: {word}", replace(now, world=world, sweeper=actor)
        yield from self._worker_steps(now)

    def _worker_steps(self, now: Everybody) -> Iterator[tuple[str, Everybody]]:
        if now.worker.answers is None:
            # Any job so far: late, repeated, or of a worker that received it long ago.
            for decision in now.world.jobs:
                yield f"worker: takes {decision}", replace(now, worker=Actor(()), at=decision.number)
            return
        decision = now.world.jobs[now.at - 1]
        word, world, actor = _step(now.worker, lambda objects, _: self._do(objects, decision), now.world)
        if actor.answers is None:
            jobs = tuple(replace(one, done=one.done or one.number == now.at) for one in world.jobs)
            yield f"worker: {word}", replace(now, world=replace(world, jobs=jobs), worker=Actor(), at=0)
        else:
            yield f"worker: {word}", replace(now, world=world, worker=actor)
        yield "worker: dies", replace(now, worker=Actor(), at=0)

    def _do(self, objects: Objects, decision: Decision) -> None:
        effect = self.effect(objects)
        job = Job("sheets.objects", NAME, Place(0, decision.number), {"keep": decision.keep})
        assert list(effect.steps(job, None, None)) == []
        effect.finish(job, None)

    def fault(self, now: Everybody) -> str:
        """Fault of the state now, or after a crash of all actors now."""
        world = now.world
        if world.decided == "completed" and dict(world.objects) != {NAME: CONTENT}:
            return "an entry names what is not there"
        end = self.in_the_end(world)
        if end.decided == "completed":
            if dict(end.objects) != {NAME: CONTENT}:
                return "the last sweep took what an entry names"
            if end.marks:
                return "what an entry names is marked after the last sweep"
        elif end.objects:
            return "what no entry names is there after the last sweep"
        if end.entries > 1:
            return "there are two entries"
        return ""

    def in_the_end(self, world: World) -> World:
        """Final state after a crash of all actors: remaining jobs are done, and a last garbage collection runs."""
        for _ in range(2):
            for decision in world.jobs:
                if not decision.done:
                    calls = Calls(world)
                    self._do(calls, decision)
                    world = calls.world
            world = replace(world, jobs=tuple(replace(one, done=True) for one in world.jobs))
            calls = Calls(world)
            self.sweep(calls, calls.produce)
            world = calls.world
        return world


def _steps(actor: Actor, program: Program, world: World) -> Iterator[tuple[str, World, Actor]]:
    if actor.answers is not None:
        yield _step(actor, program, world)
        yield "dies", world, replace(actor, answers=None, runs=0)
    if actor.runs:
        yield "begins" if actor.answers is None else "dies and begins again", world, Actor((), actor.runs - 1)


def _step(actor: Actor, program: Program, world: World) -> tuple[str, World, Actor]:
    calls = Calls(world, actor.answers or (), more=1)
    try:
        program(calls, calls.produce)
    except _Paused:
        return f"call {len(calls.answers)}", calls.world, replace(actor, answers=calls.answers)
    return f"call {len(calls.answers)}, the last one", calls.world, replace(actor, answers=None)


def _name() -> str:
    return create(Calls(World()), "sheet-1", "request-1", BytesIO(CONTENT)).object_id


#: Name of the one object.
NAME = _name()
