"""One pipeline that cannot be landed takes no other one down."""

import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from onefold.error_codes import Code, CodedError
from onefold.pipelines import Pipeline
from onefold.process import ServiceProcess
from onefold.processor.core.errors import Misconfigured, Refused, Retriable
from onefold.spark_sink import service, supervisor
from onefold.spark_sink.errors import Stopped
from onefold.spark_sink.service import LeftOut
from onefold.status_file import Status
from onefold.telemetry import SILENT, Telemetry
from tests.support.coded import raises
from tests.support.told import Kept

pytestmark = pytest.mark.promise("broken-pipelines-stay-alone")


class Query:
    def __init__(self, name: str) -> None:
        self.name, self.landed, self.stopped = name, 7, False

    def stop(self) -> None:
        self.stopped = True


class QuerySupervisor:
    """Raises what it is given, one at each tick, and asks for the end when nothing is left."""

    def __init__(self, name: str, *raised: CodedError, running: bool = True) -> None:
        self.query, self.trouble, self.running = Query(name), None, running
        self.healthy = running
        self.raised = list(raised)
        self.ticks = 0

    def tick(self) -> None:
        self.ticks += 1
        if self.raised:
            raise self.raised.pop(0)


class StopsAfter(threading.Event):
    """Set after so many turns of the loop."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self._left = turns
        self.turns = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.turns += 1
        if self.turns == self._left:
            self.set()
        return self.is_set()


class Paused:
    """Pauses pipelines at some looks.

    Args:
        at: by the number of a look, from 1, the pipelines that are paused from then on.
    """

    def __init__(self, at: Mapping[int, Sequence[str]] | None = None) -> None:
        self._at, self._looks, self._now = at or {}, 0, list[str]()

    def changed(self) -> tuple[list[str], list[str]]:
        self._looks += 1
        before, self._now = self._now, [*self._at.get(self._looks, self._now)]
        return [one for one in self._now if one not in before], [one for one in before if one not in self._now]

    def __contains__(self, name: str) -> bool:
        return name in self._now

    def sentences(self) -> list[str]:
        return [f"{name} is paused" for name in self._now]


class Reported(Status):
    """What would be in the file, line by line."""

    def __init__(self) -> None:
        super().__init__(None)
        self.lines: list[tuple[str, str]] = []

    def write(self, state: str, detail: str) -> None:
        self.lines.append((state, detail))


def serve(
    *supervisors: QuerySupervisor,
    turns: int = 3,
    watched: Any = (),
    again: Any = None,
    telemetry: Telemetry = SILENT,
    held: service.Holdups | None = None,
    paused: Any = None,
    no_executors: str = "",
) -> tuple[LeftOut, list[tuple[str, str]]]:
    """A turn of the loop takes a second."""
    process, reported, stop = ServiceProcess(None), Reported(), StopsAfter(turns)
    process.status, process.stop = reported, stop
    left_out = LeftOut(telemetry, clock=lambda: float(stop.turns))
    cluster: Any = SimpleNamespace(trouble=lambda: no_executors, stop=lambda: None)
    served = cast("list[supervisor.QuerySupervisor]", list(supervisors))
    holdups = held or service.Holdups()
    service._serve(served, left_out, holdups, cast("Any", paused or Paused()), process, cluster, dict(watched), again)
    return left_out, reported.lines


@pytest.mark.parametrize(
    "error", [Misconfigured(Code.SQL_WRONG, "no such column"), Refused(Code.TOPIC_RECREATED, "another topic")]
)
def test_a_broken_pipeline_is_left_out_and_the_others_go_on(error: CodedError) -> None:
    """With its sentence in the status, and its query stopped."""
    broken, healthy = QuerySupervisor("broken", error), QuerySupervisor("healthy")
    watched = {name: SimpleNamespace(running=None, trouble=None) for name in ("broken", "healthy")}
    left_out, reported = serve(broken, healthy, watched=watched, turns=2)

    assert "broken" in left_out
    assert broken.query.stopped
    assert (broken.ticks, healthy.ticks) == (1, 2)
    assert (watched["broken"].running, watched["broken"].trouble) == (False, "it is left out")
    assert (watched["healthy"].running, watched["healthy"].trouble) == (True, "")
    assert reported[-1] == ("running", f"written since the last start: healthy 7 offsets; broken is left out: {error}")


@pytest.mark.promise("left-out-pipelines-return")
def test_a_pipeline_that_was_left_out_is_tried_again_until_it_lands() -> None:
    """With pauses that grow; and its sentence stays until then, in the status and in its health."""
    told, tries = Kept(), list[int]()
    broken, healthy = Misconfigured(Code.SQL_WRONG, "permission denied"), QuerySupervisor("healthy")

    def again(name: str) -> QuerySupervisor:
        tries.append(healthy.ticks)
        if len(tries) == 3:
            raise broken
        return QuerySupervisor(name, *([broken] if len(tries) < 4 else []))

    with capture_logs() as logged:
        left_out, reported = serve(QuerySupervisor("one", broken), healthy, turns=40, again=again, telemetry=told)
    assert tries == [2, 6, 14, 30]
    assert "one" not in left_out
    assert reported[10] == (
        "running",
        "written since the last start: healthy 7 offsets; one is left out: permission denied",
    )
    assert reported[-1] == ("running", "written since the last start: healthy 7 offsets, one 7 offsets")
    assert told.wrong == {"one": ""}
    assert [line["event"] for line in logged] == ["one is left out: permission denied", "one is written again"]


def test_what_the_database_lacks_does_not_end_a_sink_of_one_pipeline() -> None:
    """A new process would find the same."""
    told = Kept()
    refuses = QuerySupervisor("one", Stopped(Code.ROWS_REFUSED, "PostgreSQL refuses every row"))
    left_out, reported = serve(
        refuses, again=lambda name: QuerySupervisor(name, running=False), turns=4, telemetry=told
    )
    assert {state for state, _ in reported} == {"waiting"}
    assert "one is left out: PostgreSQL refuses every row" in reported[-1][1]
    assert told.wrong == {"one": "it is left out: PostgreSQL refuses every row"}
    assert left_out.sentences() == ["one is left out: PostgreSQL refuses every row"]


@pytest.mark.promise("held-up-statements")
def test_what_keeps_a_commit_is_in_the_status_and_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """Also for /healthz, by the trouble of the pipeline; and no longer when PostgreSQL has answered."""
    kept, healthy = QuerySupervisor("orders"), QuerySupervisor("healthy")
    watched = {name: SimpleNamespace(running=None, trouble=None) for name in ("orders", "healthy")}
    held = service.Holdups()
    for seconds in (5, 10):
        held.tell("orders", f"COMMIT waits for a synchronous standby (wait event SyncRep) for {seconds} s")
    _, reported = serve(kept, healthy, watched=watched, held=held)
    sentence = "COMMIT waits for a synchronous standby (wait event SyncRep) for 10 s"

    assert reported[-1] == ("waiting", f"orders: {sentence}")
    assert (watched["orders"].trouble, watched["healthy"].trouble) == (sentence, "")
    assert capsys.readouterr().out.count("COMMIT waits") == 1

    held.tell("orders", "")
    _, reported = serve(kept, healthy, watched=watched, held=held)
    assert reported[-1][0] == "running"
    assert "PostgreSQL has answered" in capsys.readouterr().out


def test_when_nothing_is_left_it_ends_with_the_worst_of_it() -> None:
    """A person is asked for: 3, and not 2."""
    with raises(Refused, Code.TOPIC_RECREATED):
        serve(
            QuerySupervisor("one", Refused(Code.TOPIC_RECREATED, "another topic")),
            QuerySupervisor("two", Misconfigured(Code.SQL_WRONG, "no such column")),
        )


def test_what_one_pipeline_waits_for_does_not_start_the_others_anew() -> None:
    """A topic that is missing for ever is its own trouble, as long as anything else lands."""
    waiting, healthy = (
        QuerySupervisor("waiting", *[Retriable(Code.KAFKA_SILENT, "its topic is missing")] * 3, running=False),
        QuerySupervisor("healthy"),
    )
    serve(waiting, healthy)
    assert (waiting.ticks, healthy.ticks) == (3, 3)


def test_when_nothing_lands_patience_ends_the_process() -> None:
    """It is Kafka that is away, or PostgreSQL: the supervisor starts it again."""
    with pytest.raises(Retriable):
        serve(
            QuerySupervisor("one", Retriable(Code.KAFKA_SILENT, "Kafka does not answer"), running=False),
            QuerySupervisor("two", running=False),
        )


def test_a_contract_that_cannot_be_landed_is_known_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that can be landed is started alone."""
    checkout = Path(__file__).resolve().parents[2]
    healthy = Pipeline("runner", checkout, "", None, checkout / "avro", checkout / "sql")
    broken = Pipeline("nothing", checkout, "", None, tmp_path, tmp_path)
    started: list[str] = []
    told = Kept()
    told.listens = False
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)

    def serve_nothing(supervisors: Any, left_out: LeftOut, *rest: Any) -> None:
        started.extend(supervisor.query.name for supervisor in supervisors)
        assert left_out.sentences()[0].startswith("nothing is left out: ")

    monkeypatch.setattr(service, "_serve", serve_nothing)
    given: dict[str, Any] = {
        "bootstrap_servers": "127.0.0.1:9",
        "kafka_options": {},
        "spark_kafka": {},
        "postgres_dsn": "",
        "writer": "w",
        "jars": [],
        "java_home": "",
        "checkpoint_root": tmp_path,
        "status_file": None,
        "step": lambda name: None,
        "telemetry": told,
    }
    assert service.run([broken, healthy], **given) == 0
    assert started == ["runner"]
    assert told.standing["nothing", ""][1].startswith("it is left out: "), "its health is not that of the others"
    assert service.run([broken], **given) == 2


@pytest.mark.promise("one-pipeline-pauses")
def test_a_paused_pipeline_is_not_written_and_the_others_are() -> None:
    """Its files are read again when it goes on."""
    one, other, fresh = QuerySupervisor("one"), QuerySupervisor("other"), list[QuerySupervisor]()
    watched = {name: SimpleNamespace(running=None, trouble=None) for name in ("one", "other")}

    def again(name: str) -> QuerySupervisor:
        fresh.append(QuerySupervisor(name))
        return fresh[-1]

    paused = Paused({2: ["one"], 5: []})
    _, reported = serve(one, other, turns=7, watched=watched, again=again, paused=paused)
    assert (one.ticks, one.query.stopped, other.ticks) == (1, True, 7)
    assert [(made.query.name, made.ticks) for made in fresh] == [("one", 3)]
    assert reported[1] == ("running", "written since the last start: other 7 offsets; one is paused")
    assert reported[-1] == ("running", "written since the last start: other 7 offsets, one 7 offsets")


@pytest.mark.promise("one-pipeline-pauses")
def test_a_pipeline_that_is_left_out_is_not_tried_while_it_is_paused() -> None:
    """Nor does the sink end, for want of another pipeline; and it comes back with what is wrong then."""
    tries = list[int]()
    broken = Misconfigured(Code.SQL_WRONG, "permission denied")
    told, paused = Kept(), Paused({2: ["one"], 30: []})

    def again(name: str) -> QuerySupervisor:
        tries.append(paused._looks)
        return QuerySupervisor(name)

    left_out, reported = serve(
        QuerySupervisor("one", broken), QuerySupervisor("two"), turns=32, again=again, telemetry=told, paused=paused
    )
    assert (tries, "one" in left_out, told.wrong) == ([30], False, {"one": ""})
    _, reported = serve(QuerySupervisor("one"), turns=3, paused=Paused({1: ["one"]}))
    assert reported[-1] == ("running", "one is paused")


@pytest.mark.promise("unhealthy-is-said")
def test_a_spark_without_executors_is_in_the_status() -> None:
    """With the pipelines that are left out or paused; the queries go on, for executors may come back."""
    one, sentence = QuerySupervisor("one"), "Spark has had no executors at yarn for 30 s"
    _, reported = serve(one, turns=2, no_executors=sentence)
    assert reported == [("waiting", sentence)] * 2
    assert one.ticks == 2
