"""How soon a publisher is missed."""

from itertools import count

from onefold.processor.runtime.patience import LEAST_SHARE, Patience, Usual

MOST_S = 0.6
LOOK_S = 0.05


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def usual(seconds: float = 0.0, inputs: int = 0) -> Usual:
    found = Usual()
    found.saw(seconds)
    found.decided(inputs)
    return found


def missed_after(
    usually: Usual, clock: Clock | None = None, patience: Patience | None = None, since: float | None = None
) -> float:
    """Seconds from a decision, which was made now unless `since` says when, until it is taken up."""
    clock = clock or Clock()
    patience = patience or Patience(MOST_S, clock)
    since = clock.now if since is None else since
    for number in count():
        if patience.is_over(since, usually):
            return number * LOOK_S
        clock.now += LOOK_S
    raise AssertionError


def test_it_is_missed_sooner_where_transactions_are_quick() -> None:
    assert MOST_S * LEAST_SHARE <= missed_after(usual(0.0)) <= MOST_S * LEAST_SHARE + 2 * LOOK_S
    assert 0.4 <= missed_after(usual(0.1)) <= 0.4 + 2 * LOOK_S
    assert MOST_S <= missed_after(usual(5.0)) <= MOST_S + 2 * LOOK_S


def test_who_was_frozen_looks_again_before_it_takes_over() -> None:
    clock = Clock()
    patience = Patience(MOST_S, clock)
    since = clock.now
    assert not patience.is_over(since, usual())
    clock.now += 60
    assert not patience.is_over(since, usual())
    # It has heard of a version meanwhile: the time begins anew.
    later = clock.now
    assert not patience.is_over(later, usual())
    clock.now += 60
    assert not patience.is_over(later, usual())
    # And of nothing more. However seldom it gets to look, it takes over in the end.
    clock.now += 60
    assert patience.is_over(later, usual())


def test_what_is_published_needs_nobody() -> None:
    clock = Clock()
    patience = Patience(MOST_S, clock)
    for _ in range(100):
        clock.now += 1
        assert not patience.is_over(None, usual())
    assert missed_after(usual(0.0), clock, patience) >= MOST_S * LEAST_SHARE


def test_a_slow_transaction_is_remembered_for_a_while() -> None:
    seen = usual(0.2, inputs=5_000)
    seen.saw(0.02)
    seen.decided(1)
    assert seen.seconds > 0.19
    assert seen.inputs > 4_800
    for _ in range(500):
        seen.saw(0.02)
        seen.decided(1)
    assert seen.seconds == 0.02
    assert seen.inputs == 1


def test_a_large_decision_is_given_its_time() -> None:
    """Else who publishes it is fenced in the middle, and so is who begins anew."""
    assert MOST_S + 1 <= missed_after(usual(5.0, inputs=5_000)) <= MOST_S + 1 + 2 * LOOK_S


def test_who_was_fenced_waits_twice_as_long_each_time_until_it_has_published() -> None:
    clock = Clock()
    patience = Patience(MOST_S, clock)
    slow, since = usual(5.0), clock.now
    for times in (1, 2, 4, 8, 16, 32, 32):
        assert MOST_S * times - LOOK_S <= missed_after(slow, clock, patience, since) <= MOST_S * times + 2 * LOOK_S
        patience.fenced()
    patience.published()
    assert missed_after(slow, clock, patience) <= MOST_S + 2 * LOOK_S


def test_who_was_fenced_forgets_it_while_another_one_publishes() -> None:
    """Slowly: a version that took the other one long is no sign that the next one takes less."""
    clock = Clock()
    patience = Patience(MOST_S, clock)
    slow = usual(5.0)
    for _ in range(4):
        patience.fenced()

    def others_publish(versions: int) -> None:
        for _ in range(versions):
            clock.now += LOOK_S
            assert not patience.is_over(clock.now, slow)

    others_publish(1)
    assert missed_after(slow, clock, patience) > MOST_S * 8
    others_publish(250)
    assert missed_after(slow, clock, patience) <= MOST_S * 1.1 + 2 * LOOK_S


def test_what_passed_while_a_replica_published_is_no_waiting() -> None:
    clock = Clock()
    patience = Patience(MOST_S, clock)
    since = clock.now
    clock.now += 60
    patience.fenced()
    assert missed_after(usual(5.0), clock, patience, since) >= 2 * MOST_S - LOOK_S
