"""Runs named actors one at a time, in an order that a seed decides: a run that fails is run again by its seed.

An actor is a function in a thread of its own. Only one of them holds the baton and runs; at a switch point, `switch`, `wait`
or `pause`, it gives the baton back, and the seed decides who has it next. The clock is virtual: it moves only when somebody
who pauses is chosen.

    with Scheduler(seed) as scheduler:
        scheduler.start("one", one)
        scheduler.start("two", two)
        scheduler.run()
        assert ...  # whatever fails in here says the seed and the schedule

An actor may be stopped by something that the scheduler does not see, as by a lock in a database that another actor holds.
With the baton in its hand it would wait for somebody who cannot run. So such an actor is started with `blocked`, which asks
the outside whether it is stopped now. If it is, it loses the baton. Before each later choice the scheduler looks again: who
is not blocked any more is waited for, up to its next switch point. Where `blocked` is exact, and what frees the actor is done
when the one that does it comes to a switch point, the same seed gives the same schedule.

It knows nothing of what it drives.
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

# How likely it is at a choice that who pauses may be chosen, although others are ready.
_TIME_PASSES = 0.2
# How long an actor may run before it is asked whether it is blocked; the answer decides, and not the time.
_LOOK_S = 0.005


class Abandoned(BaseException):
    """Raised at the switch points of the actors that are left when a run has failed: nobody should catch it."""


class Stuck(Exception):
    """Nobody can go on, or an actor does not come back; the text says who waits where."""


@dataclass(eq=False)
class _Actor:
    name: str
    run: Callable[[], None]
    blocked: Callable[[], bool] | None
    thread: threading.Thread | None = None
    # running: it has the baton, or had it when it was blocked. Otherwise it waits at a switch point.
    running: bool = False
    ended: bool = False
    adrift: bool = False
    label: str = "start"
    condition: Callable[[], bool] | None = None
    wakes_at: float = 0.0
    error: BaseException | None = None
    # Wakes this thread alone: one condition variable for all would wake every actor at every switch point.
    baton: SimpleQueue[None] = field(default_factory=SimpleQueue)


class Scheduler:
    """Actors, a virtual clock and a seed. `schedule` has who was chosen, and at which switch point it stood.

    `dice` is for the choices of the actors themselves; they roll it with the baton in their hand.
    """

    def __init__(self, seed: int, *, answer_s: float = 30.0) -> None:
        """`answer_s`: an actor that neither comes to a switch point nor is blocked for so long fails the run."""
        self.seed = seed
        self.schedule: list[str] = []
        self.dice = random.Random(f"dice {seed}")
        self._choices = random.Random(f"choices {seed}")
        self._answer_s = answer_s
        self._now = 0.0
        self._actors: list[_Actor] = []
        self._returned = SimpleQueue[None]()  # an item for each baton that an actor gives back
        self._abandoned = False
        self._local = threading.local()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._abandon()
        if error is not None:
            error.add_note(self.story())

    def story(self) -> str:
        """The seed and the schedule, for a person and for a second run."""
        return f"seed {self.seed}, schedule: {' > '.join(self.schedule)}"

    # --- for actors

    def start(self, name: str, run: Callable[[], None], blocked: Callable[[], bool] | None = None) -> None:
        """Another actor; also from within one. `blocked`: is it stopped by something outside, right now?"""
        same = sum(actor.name.partition("#")[0] == name for actor in self._actors)
        actor = _Actor(f"{name}#{same + 1}" if same else name, run, blocked)
        actor.thread = threading.Thread(target=self._live, args=(actor,), name=actor.name, daemon=True)
        self._actors.append(actor)
        actor.thread.start()

    def switch(self, label: str) -> None:
        """Somebody else may go on here, or the caller."""
        self._give_back(label)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Go on when `condition` holds. It is asked before each choice, while nobody runs."""
        if getattr(self._local, "actor", None) is None:  # after the run, or before it: nobody could make it hold
            if not condition():
                raise Stuck("only an actor can wait")
            return
        self._give_back("wait", condition)

    def changed(self) -> None:
        """Nothing to do: conditions are asked before each choice."""

    def pause(self, duration_s: float) -> None:
        """Go on when the clock has moved by `duration_s`."""
        self._give_back("pause", wakes_at=self._now + duration_s)

    def monotonic(self) -> float:
        """Virtual seconds."""
        return self._now

    # --- for the test

    def run(self) -> None:
        """Until every actor has ended. Raises what one of them raised, or Stuck."""
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
        """Wait until whoever runs is at a switch point, has ended, or is blocked.

        Whoever came back may have freed somebody on its way: so who was blocked is asked again after it.
        """
        while running := [actor for actor in self._actors if actor.running]:
            if not [actor for actor in sorted(running, key=lambda actor: actor.adrift) if self._comes_back(actor)]:
                return

    def _comes_back(self, actor: _Actor) -> bool:
        """True when it is back; False when it is blocked."""
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
            while actor.running:  # an item may be of another actor
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
        except BaseException as error:  # noqa: BLE001 - it is raised where the run was begun
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
        """End every actor that is left."""
        self._abandoned = True
        for actor in self._actors:
            actor.baton.put(None)
        for actor in self._actors:
            if actor.thread is not None and actor.thread.is_alive():
                actor.thread.join(self._answer_s)
