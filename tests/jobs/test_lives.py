"""Workers beside a reset of their pipeline: nothing that one does for a job of before is seen in the new run."""

from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest

from onefold import pipeline_lock
from onefold.error_codes import Code
from onefold.jobs.pending import PostgresPending
from onefold.jobs.protocols import Job, Place
from onefold.jobs.writer import RecordWriter
from onefold.processor.core.errors import Retriable
from onefold.processor.core.topology import Topology
from tests.support.coded import raises
from tests.support.processes import records
from tests.support.waiting import eventually

REPORTS = "sheets.finished"
JOB = Job("sheets.jobs", "s", Place(0, 101), {"log_id": "s", "segment": 0, "entry": 101})


def test_a_reset_and_a_worker_keep_each_other_away(jobs_database: str) -> None:
    """Of one pipeline; and a worker that is gone keeps nobody away."""
    worker = PostgresPending(jobs_database, "1", "sheets")
    with psycopg.connect(jobs_database) as reset:
        assert [(one.name, one.alone) for one in pipeline_lock.holders(reset, "sheets")] == [
            ("onefold-worker 1", False)
        ]
        assert not pipeline_lock.take(reset, "sheets")
        assert pipeline_lock.holders(reset, "orders") == []
        worker.close()
        eventually(lambda: pipeline_lock.take(reset, "sheets"), 20, "it is gone")
        assert [one.alone for one in pipeline_lock.holders(reset, "sheets")] == [True]
        with raises(Retriable, Code.RESET_INCOMPLETE, "sheets"):
            PostgresPending(jobs_database, "1", "sheets")
        PostgresPending(jobs_database, "1", "orders").close()
    PostgresPending(jobs_database, "1", "sheets").close()


def test_who_has_lost_the_session_writes_nothing_more(
    fresh_domain: Callable[..., Topology], client: dict[str, str], jobs_database: str
) -> None:
    """Into no table, and nothing that anybody sees into a topic."""
    fresh_domain("sheets")
    worker = PostgresPending(jobs_database, "1", "sheets")
    writer = RecordWriter(client, worker.still)
    writer.write(REPORTS, b"s", b"seen", [])
    with psycopg.connect(jobs_database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onefold-worker 1'"
        )
    with pytest.raises(psycopg.Error):
        writer.write(REPORTS, b"s", b"not seen", [])
    with pytest.raises(psycopg.Error):
        worker.add(JOB)
    assert [one.value for one in records(client, REPORTS)] == [b"seen"]


@pytest.mark.promise("resets-wait-for-workers")
def test_what_was_sent_before_a_reset_is_gone_with_its_topic(
    fresh_domain: Callable[..., Topology], client: dict[str, str], jobs_database: str
) -> None:
    """The worker saw its session, slept through the whole reset, and commits only then."""
    fresh_domain("sheets")

    def sleeps() -> None:
        fresh_domain("sheets")

    with suppress(Retriable):  # the client may be told that its topic is another one
        RecordWriter(client, sleeps).write(REPORTS, b"s", b"of before", [])
    assert records(client, REPORTS) == []
    RecordWriter(client, lambda: None).write(REPORTS, b"s", b"of now", [])
    assert [one.value for one in records(client, REPORTS)] == [b"of now"]
