"""The sink as a process: killed, stopped, refused, kept waiting. It must end with the right code and one sentence."""

import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from onefold.exit_codes import REFUSED, UNAVAILABLE
from onefold.stack.ports import free_ports
from tests.support.made_up_domain import MadeUp
from tests.support.sink import LANDED_IN_S
from tests.support.sink_children import Child, SinkOf, Start
from tests.support.told import asked
from tests.support.waiting import eventually

Reader = psycopg.Connection[Any]


@pytest.fixture
def start(sink_of: SinkOf, made_up: MadeUp, tmp_path: Path) -> Start:
    """Starts sinks for the made-up domain."""
    return sink_of(made_up.name, tmp_path)


@pytest.mark.promise("sinks-that-wait")
def test_a_sink_that_waited_for_topics_is_killed_and_changes_nothing_and_topics_made_anew_are_refused(
    made_up: MadeUp, start: Start, database: str, reader: Reader
) -> None:
    """kill -9 in the middle of its first batch; the next sink lands everything; then its topics are taken away."""
    killed = start(failpoint="sink.after_merge:1")
    eventually(lambda: killed.is_in("waiting"), LANDED_IN_S, "it says that it waits")
    assert "a topic is missing" in killed.status()["detail"]
    made_up.create_topics(partitions=2)
    made_up.send(range(30))
    assert killed.process.wait(LANDED_IN_S) == -signal.SIGKILL
    again = start()
    eventually(lambda: made_up.is_landed(database), LANDED_IN_S, "all output records are written to PostgreSQL")
    made_up.check(reader)
    eventually(lambda: again.is_in("running"), LANDED_IN_S, "it says that it is running")
    made_up.make_anew()
    assert again.process.wait(LANDED_IN_S) == REFUSED
    assert "was deleted and recreated" in again.status()["detail"]
    for one in (killed, again):
        _says_no_more_than_sentences(one)


@pytest.mark.long  # 22 s
@pytest.mark.promise("left-out-pipelines-return", "sinks-that-wait")
def test_a_sink_goes_on_when_the_database_is_mended(
    made_up: MadeUp, start: Start, database: str, reader: Reader
) -> None:
    """Closed for some seconds, then a column that no row fills: each is said, and neither needs another start."""
    name, port = made_up.name, free_ports(1)[0]
    made_up.create_topics(partitions=2)
    name_of_database = conninfo.conninfo_to_dict(database)["dbname"]
    with psycopg.connect(conninfo.make_conninfo(database, dbname="postgres"), autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name_of_database} ALLOW_CONNECTIONS false")
        child = start(metrics_port=port, stall_s=120.0)
        closed = "not currently accepting connections"
        eventually(lambda: closed in child.status().get("detail", ""), LANDED_IN_S, "it says why it waits")
        admin.execute(f"ALTER DATABASE {name_of_database} ALLOW_CONNECTIONS true")
    made_up.send(range(10))
    eventually(lambda: made_up.is_landed(database), LANDED_IN_S, "all output records are written to PostgreSQL")

    reader.execute(f"ALTER TABLE {name}.notes ADD COLUMN owner text NOT NULL DEFAULT 'x'")
    reader.execute(f"ALTER TABLE {name}.notes ALTER COLUMN owner DROP DEFAULT")
    made_up.send(range(1_000, 1_400))
    eventually(lambda: asked(port, "/healthz")[0] == 503, LANDED_IN_S, "it is not well")
    eventually(lambda: f"{name} is left out" in child.status()["detail"], LANDED_IN_S, "its status says why")
    for said in (asked(port, "/healthz")[1], child.status()["detail"], child.log.read_text(encoding="utf-8")):
        assert f"{name} is left out" in said or f"{name}: it is left out" in said
        assert 'null value in column "owner"' in said
    assert reader.execute("SELECT count(*) FROM onefold.rejected").fetchone() == (0,)
    reader.execute(f"ALTER TABLE {name}.notes DROP COLUMN owner")
    eventually(lambda: made_up.is_landed(database), LANDED_IN_S, "all output records are written to PostgreSQL")
    made_up.check(reader)
    eventually(lambda: asked(port, "/healthz")[0] == 200, LANDED_IN_S, "it is well")
    assert child.process.poll() is None
    _says_no_more_than_sentences(child)


def test_a_sink_gives_up_when_its_patience_is_over(start: Start) -> None:
    child = start(postgres_dsn="host=127.0.0.1 port=1 dbname=x", patience_s=1.0)
    assert child.process.wait(LANDED_IN_S) == UNAVAILABLE
    assert "gave up after 1 s: Postgres does not answer" in child.status()["detail"]
    _says_no_more_than_sentences(child)


def _says_no_more_than_sentences(child: Child) -> None:
    """Neither Python's stack traces nor the JVM's."""
    text = child.log.read_text(encoding="utf-8")
    assert "Traceback" not in text
    assert "\tat " not in text
