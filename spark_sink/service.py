"""The sink process: one Spark application, with a query and a supervisor for each pipeline."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import structlog

from onefold.error_codes import CodedError
from onefold.pauses import Switches
from onefold.pipelines import Pipeline
from onefold.process import ServiceProcess
from onefold.processor.core.errors import Misconfigured, Refused, Retriable
from onefold.spark_sink.contracts import load_domain
from onefold.spark_sink.errors import Stopped, sentence
from onefold.spark_sink.kafka.client import java_client_options
from onefold.spark_sink.kafka.topics import KafkaTopics
from onefold.spark_sink.lag_monitor import LagMonitor, watch
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.landing.isolate import Bound
from onefold.spark_sink.landing.ledger import Partition
from onefold.spark_sink.postgres.connection import Connection, connect
from onefold.spark_sink.query_config import Logins, QueryConfig
from onefold.spark_sink.spark import checkpoint, session
from onefold.spark_sink.spark.cluster import Cluster
from onefold.spark_sink.spark.options import LOCAL, SparkSettings
from onefold.spark_sink.spark.query import SinkQuery
from onefold.spark_sink.supervisor import QuerySupervisor
from onefold.status_file import LEFT_OUT
from onefold.telemetry import SILENT, Telemetry

log = structlog.get_logger()

#: Returns the offset after the last committed record, per partition of the topics. Raises Retriable.
EndOffsets = Callable[[list[str]], Mapping[Partition, int]]

# The first pause before the retry of a left-out pipeline. Each retry doubles the pause, up to the longest pause, because a
# refused batch costs the database seconds at each try.
_AGAIN_S = 2.0
_AGAIN_LATEST_S = 60.0
_TICK_S = 0.2  # the interval between checks of the queries, and the detection delay for an ended query
_STOP_DEADLINE_S = 10.0  # the process then exits anyway: every effect is an atomic transaction


def run(
    pipelines: Sequence[Pipeline],
    *,
    bootstrap_servers: str,
    kafka_options: dict[str, str],
    spark_kafka: dict[str, str],
    postgres_dsn: str,
    writer: str,
    jars: list[Path],
    java_home: str,
    checkpoint_root: Path,
    status_file: Path | None,
    step: Callable[[str], None],
    map_fails: Callable[[], bool] = lambda: False,
    patience_s: float = 120.0,
    guarantee: Callable[[str, Sequence[str], Connection], None] = lambda name, topics, connection: None,
    unknown_contracts: bool = False,
    lacks: Callable[[str], str] = lambda name: "",
    logins: Callable[[], Logins] | None = None,
    interval_s: float = 0.0,
    spark: SparkSettings | None = None,
    telemetry: Telemetry = SILENT,
) -> int:
    """Write the tables of `pipelines` until SIGTERM or SIGINT. Call `run` in the main thread.

    The sink does not write a paused pipeline, and reads the pipeline's files again after the pause. The sink leaves out a
    faulty pipeline, reports the reason, writes the other pipelines, and retries the faulty pipeline with growing pauses.

    Args:
        kafka_options, spark_kafka: settings of librdkafka, and of Kafka's Java client by Java's names.
        writer: the name of this sink in the ledger.
        map_fails: called for each batch; True makes the batch's tasks fail on purpose.
        patience_s: seconds until the sink gives up if no query can start, or Spark has no executors.
        guarantee, unknown_contracts, interval_s: see `QueryConfig`.
        spark: the master, and Spark's settings.
        lacks: see `QuerySupervisor`; called with the name of a pipeline.
        logins: called at each start of a query. None: the first logins stay.
        telemetry: receives the metrics and the progress.

    Returns:
        The exit code: 0 stopped on request, 69 gave up waiting. If every pipeline is left out: 2 for a wrong schema or SQL
        file, 3 for a missing right, or topics other than the source of the rows in Postgres. If PostgreSQL refuses the rows of
        a pipeline, the sink keeps running and retries.
    """
    left_out, held, wanted = LeftOut(telemetry), Holdups(), spark or SparkSettings()
    by_name = {pipeline.name: pipeline for pipeline in pipelines}
    with ServiceProcess(status_file) as process, closing(KafkaTopics(bootstrap_servers, kafka_options)) as topics:
        process.status.write("starting", "starting Spark")
        make = partial(
            QueryConfig,
            postgres_dsn=postgres_dsn, writer=writer,
            java_options=java_client_options(bootstrap_servers, kafka_options, spark_kafka),
            checkpoint_root=checkpoint.scratch(checkpoint_root),
            step=step, map_fails=map_fails,
            guarantee=guarantee, unknown_contracts=unknown_contracts, interval_s=interval_s,
            held=held.tell, telemetry=telemetry,
        )  # fmt: skip
        planned = partial(_planned, make, by_name)
        plans = []
        for name in by_name:
            with left_out.when_broken(name):
                plans.append(planned(name))
        if not plans:
            raise left_out.worst()
        client = {"bootstrap.servers": bootstrap_servers, **kafka_options}
        with closing(Switches(client, by_name, telemetry)) as paused:
            driver = session.Driver(jars, java_home, checkpoint_root, wanted)

            def start() -> Any:
                started = driver.start()
                process.catch_signals()  # PySpark has replaced the handler of SIGINT
                return started

            cluster = Cluster(start, LOCAL if wanted.submitted else wanted.master, telemetry, patience_s)
            renewed = partial(
                _renewed, logins=logins, servers=bootstrap_servers, spark_kafka=spark_kafka, topics=topics
            )
            _land(cluster, plans, planned, left_out, held, paused, process, patience_s, lacks, topics, renewed)
    return process.exit_code


def _renewed(
    plan: QueryConfig,
    *,
    logins: Callable[[], Logins] | None,
    servers: str,
    spark_kafka: dict[str, str],
    topics: KafkaTopics,
) -> QueryConfig:
    """Return the plan with the current logins. An unreadable certificate changes nothing: the file may be half written."""
    if logins is None:
        return plan
    now = logins()
    try:
        java = java_client_options(servers, now.kafka_options, spark_kafka)
    except Misconfigured:
        return plan
    topics.renew(now.kafka_options)
    return replace(plan, java_options=java, postgres_dsn=now.postgres_dsn)


def _planned(make: Callable[..., QueryConfig], by_name: Mapping[str, Pipeline], name: str) -> QueryConfig:
    """Read the files of a pipeline at every call. Raises `Misconfigured`."""
    pipeline = by_name[name]
    domain = load_domain(name, pipeline.contracts, pipeline.sql)
    return make(domain=domain, sql_root=pipeline.sql)


@dataclass
class _Broken:
    """The reason why a pipeline is left out, and the time of the next try."""

    error: Refused
    pause_s: float
    again_at: float


class Holdups:
    """The reasons for statements blocked in PostgreSQL, by pipeline."""

    def __init__(self) -> None:
        self._sentences: dict[str, str] = {}

    def tell(self, name: str, sentence: str) -> None:
        """Record the reason. See `QueryConfig.held`; called in the thread that waits for the response."""
        if sentence and name not in self._sentences:
            log.warning(f"{name}: {sentence}")
        elif not sentence:
            log.info(f"{name}: PostgreSQL has answered")
        if sentence:
            self._sentences[name] = sentence
        else:
            self._sentences.pop(name, None)

    def of(self, name: str) -> str:
        """The reason for a pipeline, or ""."""
        return self._sentences.get(name, "")

    def sentences(self) -> list[str]:
        """A sentence for each blocked pipeline."""
        return [f"{name}: {sentence}" for name, sentence in list(self._sentences.items())]


class LeftOut:
    """The pipelines left out by the sink, each with the reason. The sink retries each pipeline with growing pauses. A pipeline
    stays left out until the query is healthy.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, telemetry: Telemetry = SILENT, clock: Callable[[], float] = time.monotonic) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._broken: dict[str, _Broken] = {}

    @contextmanager
    def when_broken(self, name: str) -> Iterator[None]:
        """Leave the pipeline out if the block raises `Refused`, and log the error."""
        try:
            yield
        except Refused as error:
            before = self._broken.get(name)
            pause_s = _AGAIN_S if before is None else min(2 * before.pause_s, _AGAIN_LATEST_S)
            self._broken[name] = _Broken(error, pause_s, self._clock() + pause_s)
            if before is None or sentence(before.error) != sentence(error):
                log.error(f"{name} is left out: {sentence(error)}", code=str(error.code))
            self._telemetry.stands(name, "", self._clock(), f"it is left out: {sentence(error)}")
            self._telemetry.faulty(name, f"it is left out: {sentence(error)}")

    def due(self) -> list[str]:
        """The pipelines due for a retry. Returns each pipeline once, until the next error."""
        names = [name for name, broken in self._broken.items() if broken.again_at <= self._clock()]
        for name in names:
            self._broken[name].again_at = float("inf")
        return names

    def healthy(self, name: str) -> None:
        """The sink writes the pipeline again."""
        if self._broken.pop(name, None) is not None:
            log.info(f"{name} is written again")
            self._telemetry.faulty(name, "")

    def forget(self, name: str) -> None:
        """Remove a paused pipeline. After the pause, the sink detects a persistent fault again."""
        if self._broken.pop(name, None) is not None:
            self._telemetry.faulty(name, "")

    def __contains__(self, name: str) -> bool:
        """Whether the pipeline waits for the next retry."""
        return name in self._broken and self._broken[name].again_at < float("inf")

    def sentences(self) -> list[str]:
        """A sentence for each left-out pipeline."""
        return [f"{name}{LEFT_OUT}{sentence(broken.error)}" for name, broken in self._broken.items()]

    @property
    def names(self) -> Collection[str]:
        """The left-out pipelines, including pipelines with a retry in progress."""
        return self._broken.keys()

    @property
    def mendable(self) -> bool:
        """Whether a pipeline waits for a fix of the database. A restart of the process would not help."""
        return any(isinstance(broken.error, Stopped) for broken in self._broken.values())

    def worst(self) -> Refused:
        """The error with the greatest exit code, for a sink without pipelines."""
        return max((broken.error for broken in self._broken.values()), key=lambda error: error.exit_code)


def _land(
    cluster: Cluster,
    plans: Sequence[QueryConfig],
    planned: Callable[[str], QueryConfig],
    left_out: LeftOut,
    held: Holdups,
    paused: Switches,
    process: ServiceProcess,
    patience_s: float,
    lacks: Callable[[str], str],
    topics: KafkaTopics,
    renewed: Callable[[QueryConfig], QueryConfig],
) -> None:
    watched: dict[str, LagMonitor] = {}
    bounds: dict[str, Bound] = {}

    def supervised(plan: QueryConfig) -> QuerySupervisor:
        query = SinkQuery(cluster.session, plan, topics, bounds.setdefault(plan.domain.name, Bound()), renewed)
        if plan.telemetry.listens:
            watched[query.name] = LagMonitor(query, topics.ends, plan.telemetry)
        return QuerySupervisor(query, patience_s, time.monotonic, partial(lacks, query.name))

    supervisors = [supervised(plan) for plan in _by_backlog(plans, topics.ends)]
    if watched:
        watch(watched, process.stop)
    paused.begin()
    _serve(supervisors, left_out, held, paused, process, cluster, watched, lambda name: supervised(planned(name)))


def _by_backlog(plans: Sequence[QueryConfig], ends: EndOffsets) -> Sequence[QueryConfig]:
    """Sort the plans, the largest backlog first. If PostgreSQL or Kafka does not answer, the order stays."""
    try:
        with closing(connect(plans[0].postgres_dsn, plans[0].writer)) as connection:
            stored = {plan.domain.name: ledger.positions(connection, plan.domain.name) for plan in plans}
        end_offsets = ends([topic for plan in plans for topic in plan.reads])
    except (CodedError, psycopg.Error):
        return plans

    def backlog(plan: QueryConfig) -> int:
        written = {place: position.next_offset for place, position in stored[plan.domain.name].items()}
        return sum(end - written.get(place, 0) for place, end in end_offsets.items() if place[0] in plan.reads)

    return sorted(plans, key=backlog, reverse=True)


def _serve(
    supervisors: list[QuerySupervisor],
    left_out: LeftOut,
    held: Holdups,
    paused: Switches,
    process: ServiceProcess,
    cluster: Cluster,
    watched: Mapping[str, LagMonitor],
    again: Callable[[str], QuerySupervisor],
) -> None:
    def look() -> tuple[str, str]:
        no_executors = cluster.trouble()
        began, ended = paused.changed()
        for name in began:
            left_out.forget(name)
        for name in (*ended, *left_out.due()):
            with left_out.when_broken(name):
                supervisors.append(again(name))
        for supervisor in supervisors:
            if supervisor.query.name in paused:
                continue
            with left_out.when_broken(supervisor.query.name), _while_others_land(supervisor, supervisors):
                supervisor.tick()
                if supervisor.healthy:
                    left_out.healthy(supervisor.query.name)
            if standing := watched.get(supervisor.query.name):
                standing.running = supervisor.running
                standing.trouble = supervisor.trouble or held.of(supervisor.query.name)
        for supervisor in [*supervisors]:
            name = supervisor.query.name
            if why := "it is paused" if name in paused else "it is left out" if name in left_out else "":
                supervisors.remove(supervisor)
                if standing := watched.get(name):
                    standing.running, standing.trouble = False, why
                with suppress(Exception):  # after any error of Spark, the query still writes no more rows
                    supervisor.query.stop()
        if not supervisors and not paused.sentences() and not left_out.mendable:
            raise left_out.worst()
        return _summary(supervisors, left_out, held, paused, no_executors)

    try:
        process.watch(look, _TICK_S)
    finally:
        _within(_STOP_DEADLINE_S, [*(supervisor.query.stop for supervisor in supervisors), cluster.stop])


@contextmanager
def _while_others_land(supervisor: QuerySupervisor, supervisors: list[QuerySupervisor]) -> Iterator[None]:
    """Suppress `Retriable` while another query runs, because a missing topic of one pipeline must not end the process."""
    try:
        yield
    except Retriable:
        if not any(other.running for other in supervisors if other is not supervisor):
            raise


def _summary(
    supervisors: list[QuerySupervisor], left_out: LeftOut, held: Holdups, paused: Switches, no_executors: str
) -> tuple[str, str]:
    if no_executors:
        return "waiting", "; ".join([no_executors, *left_out.sentences(), *paused.sentences()])
    troubles = [
        f"{supervisor.query.name}: {supervisor.trouble}" for supervisor in supervisors if supervisor.trouble is not None
    ]
    waits = held.sentences()
    troubles += [*waits, *left_out.sentences()]
    well = [supervisor for supervisor in supervisors if supervisor.query.name not in left_out.names]
    if (well or not troubles) and all(supervisor.running for supervisor in well) and not waits:
        landed = ", ".join(f"{supervisor.query.name} {supervisor.query.landed} offsets" for supervisor in well)
        written = [f"written since the last start: {landed}"] if well else []
        return "running", "; ".join([*written, *paused.sentences(), *troubles])
    return (
        ("waiting", "; ".join([*troubles, *paused.sentences()])) if troubles else ("starting", "starting the queries")
    )


def _within(deadline_s: float, actions: list[Callable[[], None]]) -> None:
    """Run all `actions`, and wait at most `deadline_s` in total, because Spark's stop sometimes hangs."""

    def work() -> None:
        for action in actions:
            with suppress(Exception):  # after any error, the next action must still run
                action()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(deadline_s)
