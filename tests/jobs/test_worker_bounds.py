"""What keeps a worker going: wakes that do not multiply, and effects that give what no row can keep."""

from collections.abc import Iterator
from typing import Any

import pytest

from onefold.jobs.protocols import Done, Job
from onefold.jobs.worker import MessageOutcome
from tests.support.job_place import Place
from tests.support.model_effect import Model, job_of

A = [job_of("a", 1)]


@pytest.fixture
def place(rows: Any) -> Place:
    return Place(rows)


def test_a_backlog_is_woken_once(place: Place) -> None:
    """Of each job there is its own message, one of whoever woke it, and at most one of whoever waits for it and does not know
    that it has a message. What comes late wakes nobody once more: else there would be hundreds.
    """
    jobs = [job_of("a", entry) for entry in range(1, 31)]
    model = Model(jobs)
    for job in reversed(jobs):
        place.rows.pending().add(job)
        place.queue.put(job)
    worker, outcomes = place.worker(model), list[MessageOutcome]()
    while place.queue.left:
        if (outcome := worker.work(2.5)) is not None:
            outcomes.append(outcome)

    assert outcomes.count(MessageOutcome.DONE) == len(jobs)
    assert len(jobs) - 1 <= outcomes.count(MessageOutcome.REPEATED) <= 2 * (len(jobs) - 1)


class Odd(Model):
    """Yields what no row can keep."""

    given: Any = None

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        yield self.given

    def finish(self, job: Job, state: Any) -> Any:
        return state


@pytest.mark.parametrize("given", [b"", float("nan"), {"text": "a\0"}, {1, 2}])
def test_what_no_row_can_keep_is_the_effects_own_fault(place: Place, given: Any) -> None:
    """It costs its log a wait, and no worker its life."""
    odd = Odd(A)
    odd.given = given
    place.queue.put(A[0])

    assert place.worker(odd).work(0.0) is MessageOutcome.FAILED
    row = place.rows.pending().find(A[0])
    assert row.reason.startswith(("TypeError: ", "ValueError: "))


def test_a_backslash_before_u0000_is_a_text(place: Place) -> None:
    odd = Odd(A)
    odd.given = {"text": r"\u0000"}
    place.queue.put(A[0])

    assert place.worker(odd).work(0.0) is MessageOutcome.DONE
