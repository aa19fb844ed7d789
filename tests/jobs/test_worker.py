"""What a worker does with a message, on simulated rows and on Postgres alike; the queue is simulated."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.jobs import requeue
from onefold.jobs.protocols import Done, Job, Refuse
from onefold.jobs.worker import STEPS, Limits, Outcome
from onefold.processor.core.errors import Refused
from tests.support.job_place import Place
from tests.support.model_effect import CHUNKS, Model, expected, job_of

pytestmark = pytest.mark.promise("jobs-in-order")

A = [job_of("a", entry) for entry in range(1, 5)]
# Steps that a worker takes for other jobs of the log; who is alone there never comes to them.
OF_OTHERS = {"put_again", "known", "put_back", "woken"}


@pytest.fixture
def place(rows: Any) -> Place:
    return Place(rows)


def test_a_job_is_done_step_by_step(place: Place) -> None:
    model, steps = Model(A[:1]), list[str]()
    place.queue.put(A[0])
    assert place.worker(model, step=steps.append).work(0.0) is Outcome.DONE

    checkpoints = ["worked", "checkpointed"] * CHUNKS
    once = [name for name in STEPS if name not in {"worked", "checkpointed", *OF_OTHERS}]
    at = once.index("finished")
    assert steps == [*once[:at], *checkpoints, *once[at:]]
    assert model.objects == expected(A[:1])
    done = place.rows.pending().done(A[0])
    assert done is not None
    assert done.result == model.made_known["a", A[0].place]
    assert place.queue.left == 0
    assert place.worker(model).work(0.0) is None


def test_a_repeated_job_is_not_done_again(place: Place) -> None:
    model = Model(A[:1])
    for _ in range(3):
        place.queue.put(A[0])

    assert place.drain(place.worker(model)) == [Outcome.DONE, Outcome.REPEATED, Outcome.REPEATED]
    assert set(model.begun.values()) == {1}


def test_what_was_finished_between_the_look_and_the_claim_is_not_done_again(place: Place) -> None:
    """The row that the late one inserts is nobody's: it has to look again, and to clear it away."""
    model = Model(A[:1])
    place.queue.put(A[0])
    place.queue.put(A[0])
    other = place.worker(model)

    def step(name: str) -> None:
        if name == "looked":
            assert other.work(0.0) is Outcome.DONE

    assert place.worker(model, step=step).work(0.0) is Outcome.REPEATED
    assert set(model.begun.values()) == {1}
    assert place.rows.pending().find(A[0]) is None
    assert place.queue.left == 0


def test_a_pending_row_that_comes_before_is_waited_for(place: Place) -> None:
    """Without reading the log, as an effect that cannot."""
    model = Model(A, looks_back=False)
    place.rows.pending().add(A[0])
    place.queue.put(A[1])
    worker = place.worker(model)
    assert worker.work(0.0) is Outcome.DEFERRED
    row = place.rows.pending().find(A[1])
    assert row is not None
    assert (row.retries, row.reason) == (1, "an earlier job of its log is pending")
    place.queue.put(A[0])

    assert worker.work(0.0) is Outcome.DONE
    assert place.drain(worker).count(Outcome.DONE) == 1
    assert model.objects == expected(A[:2])


@pytest.mark.promise("lost-messages-of-jobs")
def test_a_requeue_that_was_cut_off_keeps_nobody_waiting(place: Place) -> None:
    """Its row is there, and its message is not: whoever has to wait for it puts it into the queue, once."""
    model = Model(A[:2], looks_back=False)

    def cut_off(job: Job) -> None:
        raise Crash(job)

    with pytest.raises(Crash):
        requeue.put_back(requeue.Lacking(A[0], "", first=False), model, place.rows.pending(), cut_off)
    place.queue.put(A[1])
    worker = place.worker(model)
    assert worker.work(0.0) is Outcome.DEFERRED
    row = place.rows.pending().find(A[0])
    assert row is not None
    assert (row.retries, row.reason) == (1, "the job was put into the queue again: no worker had seen it")
    place.queue.put(A[1])
    assert place.queue.left == 3

    assert place.drain(worker).count(Outcome.DONE) == 2
    assert place.queue.left == 0
    assert model.objects == expected(A[:2])


def test_jobs_found_in_the_log_become_pending_and_come_first(place: Place) -> None:
    model = Model(A)
    place.queue.put(A[2])
    worker = place.worker(model)
    assert worker.work(0.0) is Outcome.DEFERRED
    row = place.rows.pending().find(A[2])
    assert (row.active, row.retries, row.reason) == (False, 1, "2 earlier jobs of its log were not pending yet")
    assert place.rows.pending().find(A[0]) is not None

    outcomes = place.drain(worker)
    assert outcomes.count(Outcome.DONE) == 3
    assert model.objects == expected(A[:3])


class Behind(Model):
    """Of a log that has not come as far as the job."""

    behind = True

    def before(self, job: Job, newest: Done | None) -> Sequence[Job] | None:
        return None if self.behind else super().before(job, newest)


def test_a_log_that_has_not_come_that_far_is_waited_for(place: Place) -> None:
    model = Behind(A)
    place.queue.put(A[0])
    assert place.worker(model).work(0.0) is Outcome.DEFERRED
    assert place.rows.pending().find(A[0]).reason == "its log has not come that far"
    assert model.begun == {}
    model.behind = False

    assert place.drain(place.worker(model)) == [Outcome.DONE]


def test_who_waits_is_woken_by_its_predecessor(place: Place) -> None:
    """It need not sit its wait out, however long that is."""
    place.queue.put(A[1])
    model, patient = Model(A), Limits(timeout_s=10.0, first_s=1e6, longest_s=1e6)
    worker = place.worker(model, limits=patient)
    assert worker.work(0.0) is Outcome.DEFERRED
    assert worker.work(0.0) is Outcome.DONE
    assert worker.work(0.0) is Outcome.DONE

    assert place.now == 0.0
    assert model.objects == expected(A[:2])
    # Its own message is there yet, and does nothing when it comes.
    place.passes(1e6)
    assert place.drain(worker) == [Outcome.REPEATED]


def test_of_two_workers_at_one_job_one_waits(place: Place) -> None:
    """Until the other may have timed out."""
    model, waits = Model(A[:1]), list[float]()
    place.queue.put(A[0])
    place.queue.put(A[0])
    other = place.worker(model)

    def step(name: str) -> None:
        if name == "checkpointed" and not waits:
            assert other.work(0.0) is Outcome.BUSY
            waits.append(place.now)

    assert place.worker(model, step=step).work(0.0) is Outcome.DONE
    assert other.work(9.0) is None
    assert other.work(1.5) is None
    assert other.work(0.0) is Outcome.REPEATED
    assert set(model.begun.values()) == {1}


def test_two_claims_at_one_moment(place: Place) -> None:
    """Both have seen the row as it was: one of them has it."""
    model, outcomes = Model(A[:1]), list[Outcome | None]()
    place.queue.put(A[0])
    place.queue.put(A[0])
    other = place.worker(model)

    def step(name: str) -> None:
        if name == "in_order":
            outcomes.append(other.work(0.0))

    # The other one is at it for as long as it wants; what is in the way here is that its row has another increment now.
    assert place.worker(model, step=step).work(0.0) in (Outcome.BUSY, Outcome.REPEATED)
    assert outcomes == [Outcome.DONE]
    assert set(model.begun.values()) == {1}


def test_a_zombie_changes_nothing(place: Place) -> None:
    """It wakes after its successor has finished, wherever it slept since its claim, and bails out."""
    for sleeps_at in ("still_to_do", "nothing_between", "worked", "checkpointed", "finished", "entered", "removed"):
        model = Model(A[:1])
        here = Place(place.rows)
        job = Job(f"queue {sleeps_at}", "a", A[0].place, A[0].value)
        model = Model([job])
        here.queue.put(job)
        here.queue.put(job)
        successor, slept = here.worker(model), list[Any]()

        def step(
            name: str,
            here: Place = here,
            job: Job = job,
            slept: Any = slept,
            at: str = sleeps_at,
            other: Any = successor,
        ) -> None:
            if name == at and not slept:
                here.passes(11.0)
                slept.append(other.work(0.0))
                slept.append((here.rows.pending().done(job), here.rows.pending().find(job)))

        outcome = here.worker(model, step=step).work(0.0)
        assert slept[0] in (Outcome.DONE, Outcome.REPEATED)
        assert outcome is (Outcome.DONE if sleeps_at in ("entered", "removed") else Outcome.LOST), sleeps_at
        assert (here.rows.pending().done(job), here.rows.pending().find(job)) == slept[1]
        assert model.objects == expected([job])
        here.drain(successor)


def test_a_worker_hands_over_when_its_time_is_up(place: Place) -> None:
    """At a checkpoint, from which the next one goes on at once; nothing is done twice."""
    model, steps = Model(A[:1]), list[str]()
    place.queue.put(A[0])

    def work_takes_a_second(name: str) -> None:
        steps.append(name)
        if name == "worked":
            place.passes(1.0)

    worker = place.worker(model, step=work_takes_a_second, limits=Limits(timeout_s=10.0, budget_s=2.0))
    assert worker.work(0.0) is Outcome.HANDED_OVER
    row = place.rows.pending().find(A[0])
    assert (row.active, row.retries, row.state["written"]) == (False, 0, 2)
    assert worker.work(0.0) is Outcome.DONE
    assert steps.count("worked") == CHUNKS
    assert model.objects == expected(A[:1])


def test_asked_to_stop_a_worker_hands_over(place: Place) -> None:
    model = Model(A[:1])
    place.queue.put(A[0])
    assert place.worker(model, stopping=lambda: True).work(0.0) is Outcome.HANDED_OVER

    assert place.worker(model).work(0.0) is Outcome.DONE
    assert model.objects == expected(A[:1])


class Failing(Model):
    """Raises at its second chunk, as long as it is told to."""

    error: Exception | None = ValueError("no such cell")

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        for made in super().steps(job, state, newest):
            if self.error is not None and made["written"] == 2:
                raise self.error
            yield made


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (ValueError("no such cell"), Outcome.FAILED, "ValueError: no such cell"),
        (Refuse("the address is none"), Outcome.REFUSED, "refused: the address is none"),
        (ValueError("x" * 5000), Outcome.FAILED, f"ValueError: {'x' * 488}"),
    ],
)
def test_what_an_effect_raises_costs_its_own_log(place: Place, error: Exception, outcome: Outcome, reason: str) -> None:
    """Its reason stays where a person can read it, the checkpoint too, and others are not kept waiting."""
    failing, other = Failing([*A[:2], job_of("b", 1)]), job_of("b", 1)
    failing.error = error
    worker = place.worker(failing)
    place.queue.put(A[0])
    assert worker.work(0.0) is outcome
    row = place.rows.pending().find(A[0])
    assert (row.active, row.retries, row.reason, row.state["written"]) == (False, 1, reason, 1)
    place.queue.put(A[1])
    assert worker.work(0.0) is Outcome.DEFERRED
    failing.error = None
    place.queue.put(other)
    assert worker.work(0.0) is Outcome.DONE

    assert place.drain(worker).count(Outcome.DONE) == 2
    assert failing.objects == expected([*A[:2], other])


def test_a_right_that_kafka_does_not_give_ends_the_worker(place: Place) -> None:
    """It is missing for every log alike, and a person has to see it."""
    failing = Failing(A[:1])
    failing.error = Refused(
        Code.TOPIC_RECREATED, "sheets.finished cannot be written to: TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    )
    place.queue.put(A[0])
    with pytest.raises(Refused):
        place.worker(failing).work(0.0)


def test_an_effect_without_order_keeps_nobody_waiting(place: Place) -> None:
    model = Model(A, looks_back=False)
    model.ordered = False
    place.rows.pending().add(A[0])
    place.queue.put(A[1])

    assert place.worker(model).work(0.0) is Outcome.DONE


class Crash(BaseException):
    pass


def crashing_at(number: int) -> Callable[[str], None]:
    """Raises at the step of that number, counted from 0."""
    left = iter(range(number, -1, -1))

    def step(name: str) -> None:
        if next(left, None) == 0:
            raise Crash(name)

    return step


def crash_everywhere(rows: Any, deliveries: list[Job], pairs: bool) -> tuple[int, set[str]]:
    """Workers that crash at the first step, the second and so on, each on a queue of its own; then one that does not.

    With pairs, the one that goes on crashes too, at every step of its own. Says how many crashed, and at which steps.
    """
    crashes, names, first, second = 0, set[str](), 0, 0
    while True:
        jobs = [Job(f"queue {first} {second}", job.log_id, job.place, job.value) for job in deliveries]
        place, model = Place(rows), Model(sorted(set(jobs), key=lambda job: (job.log_id, job.place)))
        for job in jobs:
            place.queue.put(job)
        crashed = []
        for number in (first, second) if pairs else (first,):
            try:
                place.drain(place.worker(model, step=crashing_at(number)))
            except Crash as crash:
                crashed.append(number)
                names.add(str(crash))
        place.drain(place.worker(model))
        known = sorted(set(jobs), key=lambda job: (job.log_id, job.place))
        assert model.objects == expected(known)
        pending = rows.pending()
        assert [pending.done(job) is None or pending.find(job) is not None for job in known] == [False] * len(known)
        crashes += len(crashed)
        if pairs and len(crashed) == 2:
            second += 1
        elif crashed:
            first, second = first + 1, 0
        else:
            return crashes, names


def test_a_crash_at_every_step(rows: Any) -> None:
    """Of three jobs that come in the wrong order, one of them twice: in the end each is done once, in order."""
    crashes, names = crash_everywhere(rows, [A[2], A[1], A[0], A[1]], pairs=False)

    assert crashes > 50
    assert names == {*STEPS} - {"put_again"}, "which is taken after a crash"


@pytest.mark.slow  # 6 s
def test_a_crash_at_every_step_of_whoever_goes_on(simulated_rows: Any, postgres_rows: Any) -> None:
    """Every pair of steps: of two jobs in the wrong order on simulated rows, and of one on Postgres."""
    crashes, names = crash_everywhere(simulated_rows, [A[1], A[0]], pairs=True)
    assert crashes > 1000
    assert names == set(STEPS)

    crashes, names = crash_everywhere(postgres_rows, [A[0]], pairs=True)
    assert crashes > 150
    assert names == {*STEPS} - OF_OTHERS
