"""The rows of jobs: every write has a condition, and says whether it held. The same on the simulated ones and on Postgres."""

from dataclasses import replace
from typing import Any

import pytest

from onefold.jobs.protocols import Done, Job, JobRows, PendingRow, Place
from tests.support.model_effect import job_of

TIMEOUT_S = 30.0


def found(pending: JobRows, job: Job) -> PendingRow:
    row = pending.find(job)
    assert row is not None
    return row


def claimed(pending: JobRows, job: Job) -> int:
    pending.add(job)
    increment = pending.claim(found(pending, job), TIMEOUT_S)
    assert increment is not None
    return increment


def test_a_job_is_added_once(rows: Any) -> None:
    pending, job = rows.pending(), job_of("a", 1)
    assert pending.find(job) is None
    increment = claimed(pending, job)
    pending.add(job)

    row = found(pending, job)
    assert (row.job, row.job.value, row.active, row.increment) == (job, job.value, True, increment)
    assert (row.retries, row.state, row.reason) == (0, None, "")
    assert 0 <= row.quiet_s < 5


def test_one_of_two_claims_holds(rows: Any) -> None:
    one, other, job = rows.pending(), rows.pending(), job_of("a", 1)
    one.add(job)
    seen, seen_too = found(one, job), found(other, job)

    assert one.claim(seen, TIMEOUT_S) == 1
    assert other.claim(seen_too, TIMEOUT_S) is None
    assert other.claim(found(other, job), TIMEOUT_S) is None


def test_who_is_silent_for_too_long_is_taken_over(rows: Any) -> None:
    """Not a moment before; and what it writes then is refused, each thing that it could write."""
    one, other, job = rows.pending(), rows.pending(), job_of("a", 1)
    mine = one.checkpoint(job, claimed(one, job), {"at": 1})
    rows.passes(TIMEOUT_S - 5)
    assert other.claim(found(other, job), TIMEOUT_S) is None
    rows.passes(6)
    theirs = other.claim(found(other, job), TIMEOUT_S)

    assert theirs == mine + 1
    assert one.checkpoint(job, mine, {"at": 2}) is None
    assert not one.release(job, mine, reason="mine")
    assert not one.finish(job, mine, "mine")
    assert not one.remove(job, mine)
    assert other.done(job) is None
    assert found(other, job).state == {"at": 1}
    assert other.checkpoint(job, theirs, {"at": 2}) == theirs + 1


def test_a_checkpoint_counts_as_a_sign_of_life(rows: Any) -> None:
    pending, job = rows.pending(), job_of("a", 1)
    increment = claimed(pending, job)
    rows.passes(TIMEOUT_S - 5)
    assert pending.checkpoint(job, increment, {"at": 1}) == increment + 1
    rows.passes(TIMEOUT_S - 5)

    assert pending.claim(found(pending, job), TIMEOUT_S) is None


def test_a_claim_of_a_row_that_has_changed_is_refused(rows: Any) -> None:
    """Released, it is free; but who saw it before does not know the newest checkpoint."""
    pending, job = rows.pending(), job_of("a", 1)
    pending.add(job)
    seen = found(pending, job)
    increment = pending.checkpoint(job, claimed(pending, job), {"at": 1})
    assert pending.release(job, increment)

    assert pending.claim(seen, TIMEOUT_S) is None
    assert pending.claim(found(pending, job), TIMEOUT_S) == increment + 1


def test_given_up_it_is_nobodys(rows: Any) -> None:
    pending, job = rows.pending(), job_of("a", 1)
    increment = claimed(pending, job)
    assert pending.release(job, increment)
    assert (found(pending, job).retries, found(pending, job).reason) == (0, "")

    assert pending.checkpoint(job, increment, {}) is None
    assert not pending.finish(job, increment, None)
    assert not pending.release(job, increment, reason="again")

    assert pending.release(job, claimed(pending, job), reason="it rains")
    assert (found(pending, job).retries, found(pending, job).reason) == (1, "it rains")


def test_a_deferral_is_counted(rows: Any) -> None:
    pending, job = rows.pending(), job_of("a", 1)
    pending.add(job)
    assert pending.defer(found(pending, job), "early")
    assert pending.defer(found(pending, job), "still early")
    row = found(pending, job)
    assert (row.retries, row.reason, row.active) == (2, "still early", False)
    claimed(pending, job)

    assert not pending.defer(row, "late")
    assert not pending.defer(found(pending, job), "late")


def test_places_are_compared_as_pairs(rows: Any) -> None:
    """And within the queue and the log."""
    pending = rows.pending()
    late, middle, early = (Job("q", "a", Place(*place)) for place in ((2, 1), (1, 9), (1, 8)))
    others = [Job("q", "b", Place(0, 1)), Job("r", "a", Place(0, 1))]
    for job in (late, middle, *others):
        pending.add(job)

    assert pending.earlier(middle) is None
    earlier = pending.earlier(late)
    assert earlier == replace(found(pending, middle), quiet_s=earlier.quiet_s)
    assert earlier.unmet
    first = Job("q", "a", Place(1, 2))
    claimed(pending, first)
    assert pending.earlier(late).job == first, "of several the first"
    assert not pending.earlier(late).unmet
    assert pending.following(early) == middle
    assert pending.following(middle) == late
    assert pending.following(late) is None


def test_done_is_entered_once(rows: Any) -> None:
    pending, job = rows.pending(), job_of("a", 1)
    increment = claimed(pending, job)
    assert not pending.remove(job)
    assert pending.done(job) is None
    assert pending.finish(job, increment, {"root": "x"})
    assert pending.finish(job, increment, {"root": "y"})

    assert pending.done(job) == Done(job.place, {"root": "x"})
    assert pending.remove(job, increment)
    assert not pending.remove(job, increment)
    assert pending.find(job) is None


def test_what_is_done_may_be_removed_by_everybody(rows: Any) -> None:
    pending, other, job = rows.pending(), rows.pending(), job_of("a", 1)
    assert pending.finish(job, claimed(pending, job), None)

    assert other.remove(job)
    assert other.find(job) is None
    assert other.done(job) == Done(job.place, None)


def test_the_newest_that_is_done_comes_before(rows: Any) -> None:
    pending = rows.pending()
    for entry in (1, 5, 9):
        assert pending.finish(job_of("a", entry), claimed(pending, job_of("a", entry)), entry)

    assert pending.newest_done(job_of("a", 1)) is None
    assert pending.newest_done(job_of("a", 9)) == Done(job_of("a", 5).place, 5)
    assert pending.newest_done(job_of("b", 9)) is None


@pytest.mark.parametrize("state", [None, [], "text", 1.5, {"a": [1, {"b": None}]}])
def test_a_state_comes_back_as_it_was(rows: Any, state: Any) -> None:
    pending, job = rows.pending(), job_of("a", 1)
    assert pending.checkpoint(job, claimed(pending, job), state)

    assert found(pending, job).state == state
