"""Deterministic scheduler: runs named actors one at a time, in an order decided by a seed. The seed reproduces a failed run.

An actor is a function in a separate thread. Only the actor with the baton runs. At a switch point (`switch`, `wait` or
`pause`) the actor returns the baton, and the seed decides which actor gets it next. The clock is virtual, and advances only
when a pausing actor is chosen.

    with Scheduler(seed) as scheduler:
        scheduler.start("one", one)
        scheduler.start("two", two)
        scheduler.run()
        assert ...  # a failure in the block shows the seed and the schedule

An actor may be stopped from outside, for example by a database lock of another actor, and would then keep the baton
forever. Start such an actor with `blocked`, which returns whether the actor is stopped now. A blocked actor loses the
baton. Before each later choice, the scheduler checks again, and waits for unblocked actors until their next switch point.
The schedule is reproducible if `blocked` is exact, and if every unblocking is complete when its actor reaches a switch point.

The scheduler is independent of the code under test.
"""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

# Probability that a pausing actor may be chosen although others are ready.
_TIME_PASSES = 0.2
# Time until a running actor is checked with `blocked`; only the answer matters, not the time.
_LOOK_S = 0.005


class Abandoned(BaseException):
    """Raised at the switch points of remaining actors after a failed run; do not catch."""


class Stuck(Exception):
    """No actor can continue, or an actor does not return; the text names the waiting actors."""


@dataclass(eq=False)
class _Actor:
    name: str
    run: Callable[[], None]
    blocked: Callable[[], bool] | None
    thread: threading.Thread | None = None
    # running: has the baton, or had it when blocked. Otherwise the actor waits at a switch point.
    running: bool = False
    ended: bool = False
    adrift: bool = False
    label: str = "start"
    condition: Callable[[], bool] | None = None
    wakes_at: float = 0.0
    error: BaseException | None = None
    # One queue per actor, because one condition variable would wake every actor at every switch point.
    baton: SimpleQueue[None] = field(default_factory=SimpleQueue)


class Scheduler:
    """Actors, a virtual clock and a seed. `schedule`: chosen actors and their switch points.

    `dice`: random numbers for the actors, to be used while running.
    """

    def __init__(self, seed: int, *, answer_s: float = 30.0) -> None:
        """`answer_s`: limit for an actor that neither reaches a switch point nor is blocked."""
        self.seed = seed
        self.schedule: list[str] = []
        self.dice = random.Random(f"dice {seed}")
        self._choices = random.Random(f"choices {seed}")
        self._answer_s = answer_s
        self._now = 0.0
        self._actors: list[_Actor] = []
        self._returned = SimpleQueue[None]()  # an item for each returned baton
        self._abandoned = False
        self._local = threading.local()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._abandon()
        if error is not None:
            error.add_note(self.story())

    def story(self) -> str:
        """Seed and schedule, for reading and for a second run."""
        return f"seed {self.seed}, schedule: {' > '.join(self.schedule)}"

    # --- for actors

    def start(self, name: str, run: Callable[[], None], blocked: Callable[[], bool] | None = None) -> None:
        """Start an actor, also from within an actor. `blocked`: whether the actor is stopped from outside now."""
        same = sum(actor.name.partition("#")[0] == name for actor in self._actors)
        actor = _Actor(f"{name}#{same + 1}" if same else name, run, blocked)
        actor.thread = threading.Thread(target=self._live, args=(actor,), name=actor.name, daemon=True)
        self._actors.append(actor)
        actor.thread.start()

    def switch(self, label: str) -> None:
        """Switch point: another actor or the caller continues."""
        self._give_back(label)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, which is checked before each choice, while no actor runs."""
        if getattr(self._local, "actor", None) is None:  # outside the run no actor could make the condition true
            if not condition():
                raise Stuck("only an actor can wait")
            return
        self._give_back("wait", condition)

    def changed(self) -> None:
        """Not needed: conditions are checked before each choice."""

    def pause(self, duration_s: float) -> None:
        """Wait until the clock has advanced by `duration_s`."""
        self._give_back("pause", wakes_at=self._now + duration_s)

    def monotonic(self) -> float:
        """Virtual seconds."""
        return self._now

    # --- for the test

    def run(self) -> None:
        """Run until every actor has ended. Raises an actor's exception, or Stuck."""
        try:
            while self._choose():
                pass
        finally:
            self._abandon()

    def _choose(self) -> bool:
        self._settle()
        for actor in self._actors:
            if actor.error is not None:
                raise actor.error
        waiting = [actor for actor in self._actors if not actor.ended and not actor.running]
        ready = [
            actor for actor in waiting if actor.wakes_at <= self._now and (not actor.condition or actor.condition())
        ]
        pausing = [actor for actor in waiting if actor.wakes_at > self._now]
        if pausing and (not ready or self._choices.random() < _TIME_PASSES):
            ready.append(min(pausing, key=lambda actor: actor.wakes_at))
        if not ready:
            left = [f"{actor.name} at {actor.label}" for actor in self._actors if not actor.ended]
            if left:
                raise Stuck(f"no thread can continue: {', '.join(left)}")
            return False
        chosen = self._choices.choice(ready)
        self._now = max(self._now, chosen.wakes_at)
        self.schedule.append(f"{chosen.name}@{chosen.label}")
        chosen.running = True
        chosen.baton.put(None)
        return True

    def _settle(self) -> None:
        """Wait until every running actor is at a switch point, has ended, or is blocked.

        A returning actor may have unblocked others, so blocked actors are checked again afterwards.
        """
        while running := [actor for actor in self._actors if actor.running]:
            if not [actor for actor in sorted(running, key=lambda actor: actor.adrift) if self._comes_back(actor)]:
                return

    def _comes_back(self, actor: _Actor) -> bool:
        """Wait for an actor: True at a switch point or the end, False if blocked."""
        deadline = time.monotonic() + self._answer_s
        while not self._back(actor):
            if actor.blocked is not None and actor.blocked() and actor.running:
                if not actor.adrift:
                    self.schedule.append(f"{actor.name} is blocked")
                actor.adrift = True
                return False
            if time.monotonic() > deadline:
                raise Stuck(f"{actor.name} does not come back from {actor.label}")
        return True

    def _back(self, actor: _Actor) -> bool:
        with suppress(Empty):
            while actor.running:  # an item may belong to another actor
                self._returned.get(timeout=0.0 if actor.adrift else _LOOK_S)
        back = not actor.running
        if back:
            actor.adrift = False
        return back

    # --- in the threads of the actors

    def _live(self, actor: _Actor) -> None:
        self._local.actor = actor
        try:
            self._await_baton(actor)
            actor.run()
        except Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again in `run`
            actor.error = error
        finally:
            actor.ended = True
            self._give(actor)

    def _give_back(self, label: str, condition: Callable[[], bool] | None = None, wakes_at: float = 0.0) -> None:
        actor: _Actor = self._local.actor
        actor.label, actor.condition, actor.wakes_at = label, condition, wakes_at
        self._give(actor)
        self._await_baton(actor)

    def _give(self, actor: _Actor) -> None:
        actor.running = False
        self._returned.put(None)

    def _await_baton(self, actor: _Actor) -> None:
        if not self._abandoned:
            actor.baton.get()
        if self._abandoned:
            raise Abandoned

    def _abandon(self) -> None:
        """End all remaining actors."""
        self._abandoned = True
        for actor in self._actors:
            actor.baton.put(None)
        for actor in self._actors:
            if actor.thread is not None and actor.thread.is_alive():
                actor.thread.join(self._answer_s)
