"""Waiting for a condition that offers no event."""

import time

from onefold.waiting import until


def test_the_first_true_answer_ends_the_wait() -> None:
    answers = iter([0, "", None, "ready"])
    assert until(lambda: next(answers), 30, 0) == "ready"


def test_after_the_time_the_last_answer_is_returned_and_one_is_always_asked_for() -> None:
    began = time.monotonic()
    assert until(lambda: time.monotonic() - began < 0, 0.05, 0.01) is False
    assert time.monotonic() - began >= 0.05
    assert until(lambda: "at once", 0, 9) == "at once"
