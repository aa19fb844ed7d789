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


def missed_after(usual_s: float, clock: Clock | None = None, patience: Patience | None = None) -> float:
    """Seconds from a decision until it is taken up."""
    clock = clock or Clock()
    patience = patience or Patience(MOST_S, clock)
    since = clock.now
    for number in count():
        if patience.is_over(since, usual_s):
            return number * LOOK_S
        clock.now += LOOK_S
    raise AssertionError


def test_it_is_missed_sooner_where_transactions_are_quick() -> None:
    assert MOST_S * LEAST_SHARE <= missed_after(0.0) <= MOST_S * LEAST_SHARE + 2 * LOOK_S
    assert 0.4 <= missed_after(0.1) <= 0.4 + 2 * LOOK_S
    assert MOST_S <= missed_after(5.0) <= MOST_S + 2 * LOOK_S


def test_who_was_frozen_looks_again_before_it_takes_over() -> None:
    clock = Clock()
    patience = Patience(MOST_S, clock)
    since = clock.now
    assert not patience.is_over(since, 0.0)
    clock.now += 60
    assert not patience.is_over(since, 0.0)
    # It has heard of a version meanwhile: the time begins anew.
    later = clock.now
    assert not patience.is_over(later, 0.0)
    clock.now += 60
    assert not patience.is_over(later, 0.0)
    # And of nothing more. However seldom it gets to look, it takes over in the end.
    clock.now += 60
    assert patience.is_over(later, 0.0)


def test_what_is_published_needs_nobody() -> None:
    clock = Clock()
    patience = Patience(MOST_S, clock)
    for _ in range(100):
        clock.now += 1
        assert not patience.is_over(None, 0.0)
    assert missed_after(0.0, clock, patience) >= MOST_S * LEAST_SHARE


def test_a_slow_transaction_is_remembered_for_a_while() -> None:
    usual = Usual()
    usual.saw(0.2)
    usual.saw(0.02)
    assert usual.seconds > 0.19
    for _ in range(200):
        usual.saw(0.02)
    assert usual.seconds == 0.02
