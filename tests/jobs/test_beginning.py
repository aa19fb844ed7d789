"""What a worker and a requeue begin with, without a server: a declaration that can be used, and all that they write with asks
for their session.
"""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from onefold.cli.commands import work
from onefold.cli.main import run
from onefold.exit_codes import USAGE
from onefold.jobs import loading, pending, requeue, service, topics, writer
from onefold.jobs.context import Context
from onefold.jobs.objects.local import LocalStore
from onefold.jobs.service import Desk
from onefold.jobs.worker import Limits
from onefold.operate import pipelines
from onefold.pipelines import InvalidDeclaration, Pipeline
from onefold.processor.core.errors import Misconfigured
from tests.support.model_effect import Model
from tests.support.waiting import eventually

QUEUE = "sheets.jobs"
AWAY = "postgresql://127.0.0.1:9/none"
TODAY = datetime.now(UTC).date().isoformat()


class Session:
    """Instead of a worker's rows: a session that was cut."""

    def __init__(self, *named: object) -> None:
        pass

    def still(self) -> None:
        raise psycopg.OperationalError("the connection is closed")

    def close(self) -> None:
        """As it was."""


class Seen:
    """What was made for the work."""

    def __init__(self) -> None:
        self.context: Context | None = None
        self.stills: list[Callable[[], object]] = []

    def effect_of(self, pipeline: Pipeline, queue: str, context: Context) -> Model:
        self.context = context
        return Model([])

    def nothing_is_written_without_the_session(self) -> None:
        assert self.context is not None
        assert len(self.stills) == 1
        store = self.context.objects()
        writes: list[Callable[[], object]] = [*self.stills, self.context.still, lambda: store.put("payloads/x", b"")]
        for write in writes:
            with pytest.raises(psycopg.OperationalError):
                write()


@pytest.fixture
def context(tmp_path: Path) -> Context:
    client = {"bootstrap.servers": "127.0.0.1:9"}
    return Context("sheets", AWAY, client, lambda: LocalStore(tmp_path / "objects"), tmp_path)


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The declaration names what is not there."""

    def load_job(pipeline: Pipeline, queue: str) -> Any:
        raise InvalidDeclaration(f"pyproject.toml: pipeline {pipeline.name}: sheets has no snapshots")

    monkeypatch.setattr(Pipeline, "load_job", load_job)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", "127.0.0.1:9")
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", AWAY)


@pytest.fixture
def started(context: Context) -> Iterator[Callable[..., Desk]]:
    """Starts a worker; it has ended at the end of the test."""
    stop, desks = threading.Event(), list[Desk]()

    def start(prepare: Callable[[], object], **more: Any) -> Desk:
        sheets = pipelines.found()["sheets"]
        desk = Desk(sheets, context, "1", stop, prepare, Limits(), lambda name: None, QUEUE, **more)
        desks.append(desk)
        desk.thread.start()
        return desk

    yield start
    stop.set()
    for desk in desks:
        desk.thread.join(60)
        assert not desk.thread.is_alive()


def no_database() -> None:
    raise psycopg.OperationalError("connection refused")


def test_a_wrong_declaration_is_told_while_the_database_is_away(wrong: None, started: Callable[..., Desk]) -> None:
    """No server can mend it."""
    desk = started(no_database)
    eventually(lambda: desk.error is not None, 10, "it ends by itself")
    assert isinstance(desk.error, Misconfigured)
    assert "sheets has no snapshots" in str(desk.error)


def test_a_requeue_tells_of_it_too(wrong: None, away: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "requeue", "sheets", "--since", TODAY]) == USAGE
    assert "sheets has no snapshots" in capsys.readouterr().err


def test_what_a_worker_writes_with_asks_for_its_session(
    started: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its effect and its queue."""
    seen = Seen()

    def queue(*named: object, still: Callable[[], None], session_timeout_ms: int) -> Any:
        seen.stills.append(still)
        return SimpleNamespace(receive=lambda timeout_s: no_database(), close=lambda: None)

    monkeypatch.setattr(service, "PostgresPending", Session)
    monkeypatch.setattr(service, "effect_of", seen.effect_of)
    monkeypatch.setattr(service, "KafkaQueue", queue)
    monkeypatch.setattr(topics, "create", lambda admin, queue, *how: [])
    desk = started(lambda: None, session_timeout_ms=6_000)
    eventually(lambda: desk.waits_for.endswith("connection refused"), 10, "it has begun, and has lost its database")
    seen.nothing_is_written_without_the_session()


def test_what_a_requeue_writes_with_asks_for_its_session(
    away: None, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen()

    def made(client: object, still: Callable[[], None]) -> Any:
        seen.stills.append(still)
        return SimpleNamespace(put=None)

    monkeypatch.setattr(work, "prepare", lambda *given: None)
    monkeypatch.setattr(work, "context_of", lambda pipeline, settings, client: context)
    monkeypatch.setattr(pending, "PostgresPending", Session)
    monkeypatch.setattr(loading, "effect_of", seen.effect_of)
    monkeypatch.setattr(writer, "RecordWriter", made)
    monkeypatch.setattr(topics, "create", lambda admin, queue, *how: [])
    monkeypatch.setattr(requeue, "intentions", lambda *asked: iter(()))
    assert run(["jobs", "requeue", "sheets", "--since", TODAY]) == 0
    seen.stills = seen.stills[-1:]  # it has two queues
    seen.nothing_is_written_without_the_session()
