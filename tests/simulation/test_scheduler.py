"""The scheduler of simulations: one actor at a time, in an order that a seed decides."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from tests.support.scheduler import Scheduler, Stuck


def two_of_three_steps(seed: int) -> tuple[list[str], list[str]]:
    """What two actors of three steps did, and the schedule."""
    done: list[str] = []
    with Scheduler(seed) as scheduler:

        def actor(name: str) -> Callable[[], None]:
            def run() -> None:
                for step in "123":
                    done.append(name + step)
                    scheduler.switch(f"after {step}")

            return run

        for name in "ab":
            scheduler.start(name, actor(name))
        scheduler.run()
    return done, scheduler.schedule


def test_a_seed_gives_one_schedule() -> None:
    assert two_of_three_steps(7) == two_of_three_steps(7)


def test_seeds_reach_every_order() -> None:
    """Of three and three steps there are twenty."""
    orders = {"".join(two_of_three_steps(seed)[0]) for seed in range(400)}
    assert len(orders) == 20
    assert all(
        sorted(order[i : i + 2] for i in range(0, 12, 2)) == ["a1", "a2", "a3", "b1", "b2", "b3"] for order in orders
    )


def test_one_waits_for_another() -> None:
    for seed in range(20):
        done: list[str] = []
        with Scheduler(seed) as scheduler:

            def patient(scheduler: Scheduler = scheduler, done: list[str] = done) -> None:
                scheduler.wait(lambda: "first" in done)
                done.append("second")

            scheduler.start("patient", patient)
            scheduler.start("other", partial(done.append, "first"))
            scheduler.run()
        assert done == ["first", "second"]


def test_who_pauses_goes_on_in_order_and_nobody_waits_for_it() -> None:
    """A week passes at once."""
    ended: list[tuple[str, float]] = []
    with Scheduler(1) as scheduler:

        def pauser(name: str, duration_s: float) -> None:
            scheduler.pause(duration_s)
            ended.append((name, scheduler.monotonic()))

        scheduler.start("long", lambda: pauser("long", 604_800.0))
        scheduler.start("short", lambda: pauser("short", 1.0))
        scheduler.run()
    assert sorted(ended, key=lambda found: found[1])[0][0] == "short"
    assert scheduler.monotonic() == pytest.approx(604_800.0, abs=1.0)


def test_who_waits_for_each_other_is_named() -> None:
    def both() -> None:
        with Scheduler(3) as scheduler:
            scheduler.start("one", lambda: scheduler.wait(lambda: False))
            scheduler.start("two", lambda: scheduler.wait(lambda: False))
            scheduler.run()

    with pytest.raises(Stuck, match="no thread can continue: one at wait, two at wait") as caught:
        both()
    assert "seed 3, schedule: " in caught.value.__notes__[0]


def test_what_an_actor_raises_is_raised_with_the_seed_and_the_schedule() -> None:
    def run() -> None:
        with Scheduler(5) as scheduler:

            def fail() -> None:
                scheduler.switch("before it fails")
                raise ValueError("no")

            scheduler.start("somebody else", lambda: scheduler.wait(lambda: False))
            scheduler.start("fails", fail)
            scheduler.run()

    with pytest.raises(ValueError, match="no") as caught:
        run()
    assert "seed 5, schedule: " in caught.value.__notes__[0]
    assert "fails@before it fails" in caught.value.__notes__[0]
    assert not [thread for thread in threading.enumerate() if thread.name == "somebody else"], "nobody is left behind"


def test_who_is_blocked_outside_gives_the_baton_away() -> None:
    """As two connections do that want one row: whoever has it must be able to go on."""
    for seed in range(20):
        schedules = [_two_that_want_one_lock(seed) for _ in range(2)]
        assert schedules[0] == schedules[1]
    assert any("two is blocked" in _two_that_want_one_lock(seed) for seed in range(20))


def _two_that_want_one_lock(seed: int) -> list[str]:
    row, holder, wanted = threading.Lock(), list[str](), set[str]()
    inside: list[str] = []
    with Scheduler(seed) as scheduler:

        def actor(name: str) -> None:
            wanted.add(name)
            with row:
                wanted.discard(name)
                holder[:] = [name]
                inside.append(name)
                scheduler.switch("with the lock")
                assert inside[-1] == name
                holder.clear()
            scheduler.switch("without it")

        for name in ("one", "two"):
            scheduler.start(
                name,
                partial(actor, name),
                partial(lambda name: name in wanted and bool(holder), name),
            )
        scheduler.run()
    assert sorted(inside) == ["one", "two"]
    return scheduler.schedule


def test_who_never_comes_back_fails_the_run() -> None:
    go = threading.Event()

    def hang() -> None:
        go.wait(20)

    def run() -> None:
        with Scheduler(1, answer_s=0.1) as scheduler:
            scheduler.start("hangs", hang)
            scheduler.run()

    with pytest.raises(Stuck, match="hangs does not come back from start"):
        run()
    go.set()
