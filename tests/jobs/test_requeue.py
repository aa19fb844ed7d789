"""Which jobs a requeue finds, and what it leaves alone; the whole way, over Kafka, is in test_service.py."""

from onefold.jobs import requeue
from onefold.jobs.pending import PostgresPending
from onefold.jobs.protocols import Job
from tests.support.model_effect import Model, job_of

A = [job_of("a", entry) for entry in range(1, 5)]


def enter(rows: PostgresPending, jobs: list[Job], result: str = "there") -> None:
    for job in jobs:
        rows.add(job)
        row = rows.find(job)
        assert row is not None
        increment = rows.claim(row, 30.0)
        assert increment is not None
        assert rows.finish(job, increment, result)
        assert rows.remove(job, increment)


def found(rows: PostgresPending, model: Model) -> list[tuple[int, bool]]:
    return [(one.job.place.entry, one.first) for one in requeue.lacking(A, model, rows)]


def test_with_order_all_after_the_first_that_is_missing(jobs_database: str) -> None:
    """And without it that one alone; put back, each is pending, and done no more."""
    for ordered, lacking, left in ((True, [2, 3, 4], [1]), (False, [2], [1, 3, 4])):
        rows, model, put = PostgresPending(jobs_database, "test", "orders"), Model(A), list[Job]()
        model.ordered = ordered
        model.objects["there"] = "everything"
        enter(rows, [A[0], *A[2:]])
        enter(rows, [A[1]], "gone")
        assert [entry for entry, _ in found(rows, model)] == lacking
        assert [job.place.entry for job in A if rows.done(job)] == [1, 2, 3, 4], "looking changes nothing"
        for one in list(requeue.lacking(A, model, rows)):
            requeue.put_back(one, model, rows, put.append)

        assert [job.place.entry for job in put] == lacking
        assert [job.place.entry for job in A if rows.done(job)] == left
        assert [job.place.entry for job in A if rows.find(job)] == lacking
        assert [entry for entry, _ in found(rows, model)] == lacking, "until they are done"
        rows.forget(A[0], later=True)
        for job in A:
            enter(rows, [job])
        assert found(rows, model) == []
        rows.forget(A[0], later=True)
        rows.close()


def test_what_was_never_done_is_missing(jobs_database: str) -> None:
    """Whether it is known or not: its message may be lost."""
    rows, model = PostgresPending(jobs_database, "test", "orders"), Model(A)
    model.objects["there"] = "everything"
    enter(rows, A[:2])
    rows.add(A[2])

    assert found(rows, model) == [(3, True), (4, False)]
    rows.close()
