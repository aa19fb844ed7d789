"""The sink as a process: one Spark application, a query for each domain, each with its supervisor."""

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import structlog

from onefold.pipelines import Pipeline
from onefold.spark_sink.contracts import load_domain
from onefold.spark_sink.errors import Misconfigured, Refused, SinkError, Waiting, sentence
from onefold.spark_sink.kafka.client import java_client_options
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.spark import checkpoint, session
from onefold.spark_sink.spark.query import Query
from onefold.spark_sink.supervisor import QuerySupervisor
from onefold.status_file import Status

log = structlog.get_logger()

_TICK_S = 0.2  # how often the queries are asked how they are; one that ended is noticed this late
_STOP_DEADLINE_S = 10.0  # then the process ends anyway: every effect is one transaction, so nothing can be torn


def run(
    pipelines: Sequence[Pipeline],
    *,
    bootstrap_servers: str,
    kafka_options: dict[str, str],
    postgres_dsn: str,
    writer: str,
    jars: list[Path],
    java_home: str,
    checkpoint_root: Path,
    status_file: Path | None,
    step: Callable[[str], None],
    map_fails: Callable[[], bool] = lambda: False,
    patience_s: float = 120.0,
    decided: Collection[str] = (),
) -> int:
    """Land `pipelines` until SIGTERM or SIGINT. Call it in the main thread.

    A pipeline that cannot be landed is left out with its sentence, and the others go on.

    Args:
        writer: names this sink in the ledger.
        map_fails: asked for each batch whether its tasks should fail on purpose.
        patience_s: how long it goes on when nothing gets what it needs.
        decided: names of pipelines whose tables are filled from their decision log, because they have replicas.

    Returns:
        The exit code: 0 stopped on request, 69 gave up waiting, and when every pipeline was left out 2 for a contract or
        SQL file that is wrong, 3 for topics that are not the ones whose records Postgres holds.
    """
    status = Status(status_file)
    status.write("starting", "starting Spark")
    left_out = LeftOut()
    try:
        java_options = java_client_options(bootstrap_servers, kafka_options)
        plans = []
        for pipeline in pipelines:
            with left_out.when_broken(pipeline.name):
                plans.append(
                    Plan(
                        domain=load_domain(pipeline.name, pipeline.contracts, pipeline.sql),
                        bootstrap_servers=bootstrap_servers,
                        kafka_options=kafka_options,
                        java_options=java_options,
                        postgres_dsn=postgres_dsn,
                        writer=writer,
                        sql_root=pipeline.sql,
                        checkpoint_root=checkpoint.scratch(checkpoint_root),
                        notes=checkpoint_root / "notes",
                        step=step,
                        map_fails=map_fails,
                        decided=pipeline.name in decided,
                    )
                )
        if not plans:
            raise left_out.worst()
        with _stop_signals() as stop:
            spark = session.start(jars, java_home, checkpoint_root)
            _on_signals(stop)  # PySpark took SIGINT for itself
            return _serve(
                [QuerySupervisor(Query(spark, plan), patience_s, time.monotonic) for plan in plans],
                left_out,
                status,
                stop,
                spark.stop,
            )
    except SinkError as error:
        log.error(sentence(error))
        status.write("waiting", sentence(error))
        return error.exit_code


class LeftOut:
    """The pipelines that are not landed, each with the reason, because only a person can help them."""

    def __init__(self) -> None:
        self._errors: dict[str, SinkError] = {}

    @contextmanager
    def when_broken(self, name: str) -> Iterator[None]:
        """Keeps and says what is raised about a pipeline that has to be left out."""
        try:
            yield
        except (Misconfigured, Refused) as error:
            self._errors[name] = error
            log.error(f"{name} is left out: {sentence(error)}")

    def __contains__(self, name: str) -> bool:
        return name in self._errors

    def sentences(self) -> list[str]:
        """One for each."""
        return [f"{name} is left out: {sentence(error)}" for name, error in self._errors.items()]

    def worst(self) -> SinkError:
        """The error with the greatest exit code, for when nothing is left to land."""
        return max(self._errors.values(), key=lambda error: error.exit_code)


def _serve(
    supervisors: list[QuerySupervisor],
    left_out: LeftOut,
    status: Status,
    stop: threading.Event,
    stop_spark: Callable[[], None],
) -> int:
    try:
        while not stop.is_set():
            for supervisor in supervisors:
                with left_out.when_broken(supervisor.query.name), _while_others_land(supervisor, supervisors):
                    supervisor.tick()
            for supervisor in [supervisor for supervisor in supervisors if supervisor.query.name in left_out]:
                supervisors.remove(supervisor)
                with suppress(Exception):  # it lands nothing any more, whatever Spark says to that
                    supervisor.query.stop()
            if not supervisors:
                raise left_out.worst()
            status.write(*_summary(supervisors, left_out))
            stop.wait(_TICK_S)
        return 0
    finally:
        _within(_STOP_DEADLINE_S, [*(supervisor.query.stop for supervisor in supervisors), stop_spark])


@contextmanager
def _while_others_land(supervisor: QuerySupervisor, supervisors: list[QuerySupervisor]) -> Iterator[None]:
    """What one pipeline lacks, such as a topic, is no reason to start all of them anew."""
    try:
        yield
    except Waiting:
        if not any(other.running for other in supervisors if other is not supervisor):
            raise


def _summary(supervisors: list[QuerySupervisor], left_out: LeftOut) -> tuple[str, str]:
    troubles = [
        f"{supervisor.query.name}: {supervisor.trouble}" for supervisor in supervisors if supervisor.trouble is not None
    ]
    troubles += left_out.sentences()
    if all(supervisor.running for supervisor in supervisors):
        landed = ", ".join(f"{supervisor.query.name} {supervisor.query.landed} offsets" for supervisor in supervisors)
        return "running", "; ".join([f"landed since the last start: {landed}", *troubles])
    return ("waiting", "; ".join(troubles)) if troubles else ("starting", "starting the queries")


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; the handlers from before are put back."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    _on_signals(stop)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _on_signals(stop: threading.Event) -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _within(deadline_s: float, actions: list[Callable[[], None]]) -> None:
    """Do all of `actions`, but wait no longer than `deadline_s` in all. Spark's stop is known to hang now and then."""

    def work() -> None:
        for action in actions:
            with suppress(Exception):  # whatever it is, the next one must be stopped all the same
                action()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(deadline_s)
