"""One Spark session for all tests, and for each test an invented pipeline in a separate database."""

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
import structlog
from pyspark.sql import SparkSession

from onefold.spark_sink.contracts import load_domain
from onefold.spark_sink.kafka.client import java_client_options
from onefold.spark_sink.kafka.topics import KafkaTopics
from onefold.spark_sink.query_config import QueryConfig
from onefold.spark_sink.spark.query import SinkQuery
from onefold.spark_sink.spark.session import Driver
from onefold.spark_sink.supervisor import QuerySupervisor
from onefold.stack.embedded import Infrastructure
from onefold.testing import Crash
from tests.support.made_up_domain import MadeUp, write_domain
from tests.support.waiting import eventually

T = TypeVar("T")

# Long enough for a cold JVM with Spark on two shared cores.
LANDED_IN_S = 150
# An address without listener.
NOWHERE = "127.0.0.1:9"
# Factor of a supervisor's clock in tests, so that pauses and checks take milliseconds.
_FASTER = 25


@pytest.fixture(scope="session")
def spark(infrastructure: Infrastructure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The sink's own session, started as the service does."""
    java_home = str(infrastructure.java.spark_home)
    session = Driver(infrastructure.spark_jars, java_home, tmp_path_factory.mktemp("spark")).start()
    yield session
    session.stop()


@pytest.fixture
def domain_servers(request: pytest.FixtureRequest) -> str:
    """Address of the test's topics; without topics an unused address, so that no broker starts."""
    has_broker = "infrastructure" in request.fixturenames
    return request.getfixturevalue("bootstrap_servers") if has_broker else NOWHERE


@pytest.fixture
def made_up(tmp_path: Path, checkout: Path, domain_servers: str) -> Iterator[MadeUp]:
    """A pipeline for this test alone, with schemas, tables and merges in `tmp_path`. The topics do not exist yet."""
    name = f"t{uuid.uuid4().hex[:10]}"
    write_domain(tmp_path, checkout, name)
    with closing(MadeUp(name, tmp_path, domain_servers)) as made:
        yield made


@pytest.fixture
def made_up_topics(bootstrap_servers: str, made_up: MadeUp) -> None:
    """Create two topics of two partitions each."""
    made_up.create_topics(partitions=2)


@pytest.fixture
def sink_topics(domain_servers: str) -> Iterator[KafkaTopics]:
    """The sink's Kafka clients."""
    with closing(KafkaTopics(domain_servers, {})) as topics:
        yield topics


@pytest.fixture
def plan(made_up: MadeUp, database: str, domain_servers: str, tmp_path: Path) -> QueryConfig:
    """Plan of a sink for the invented pipeline."""
    return QueryConfig(
        domain=load_domain(made_up.name, tmp_path / "avro", tmp_path / "sql"),
        java_options=java_client_options(domain_servers, {}, {}),
        postgres_dsn=database,
        writer="test",
        sql_root=tmp_path / "sql",
        checkpoint_root=tmp_path / "checkpoints",
        step=lambda name: None,
    )


@pytest.fixture
def brief_logs() -> Iterator[None]:
    """Shorten logs as a service does, without tracebacks, whose rendering takes longer than a restart."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    yield
    structlog.configure(**before)


@pytest.fixture
def query(
    spark: SparkSession, plan: QueryConfig, sink_topics: KafkaTopics, brief_logs: None
) -> Iterator[Callable[..., SinkQuery]]:
    """Factory of queries over `plan`, with changes; stops the queries at the end."""
    made: list[SinkQuery] = []

    def make(**changes: Any) -> SinkQuery:
        made.append(SinkQuery(lambda: spark, replace(plan, **changes), sink_topics))
        return made[-1]

    yield make
    for one in made:
        one.stop()


#: Starts the sink of a built-in pipeline as a query of the session's Spark, with changes of its plan.
SinkHere = Callable[..., QuerySupervisor]


@pytest.fixture
def sink_here(query: Callable[..., SinkQuery], checkout: Path) -> SinkHere:
    """Start sinks without separate JVMs; stops them at the end."""

    def start(name: str, **changes: Any) -> QuerySupervisor:
        root = checkout / "sql"
        made = query(domain=load_domain(name, checkout / "avro", root), sql_root=root, **changes)
        supervisor = QuerySupervisor(made, LANDED_IN_S, time.monotonic)
        supervisor.tick()
        return supervisor

    return start


class CrashOnce:
    """A sink's step that fails at one hit of one name, as if the sink were killed there.

    Attributes:
        crashed: whether the failure has happened.
    """

    def __init__(self, name: str, hit: int) -> None:
        self.crashed = False
        self._name, self._left = name, hit

    def __call__(self, name: str) -> None:
        if name != self._name or self.crashed:
            return
        self._left -= 1
        if not self._left:
            self.crashed = True
            raise Crash(name)


def supervised(sink: QuerySupervisor, condition: Callable[[], T]) -> Callable[[], T]:
    """Wrap a condition for `eventually`, so that the supervisor restarts ended queries before each look."""

    def look() -> T:
        sink.tick()
        return condition()

    return look


def supervising(landed: Callable[[], bool]) -> Callable[..., None]:
    """Supervise queries, as the service does, until `landed`. A query keeps its supervisor."""
    known: dict[int, QuerySupervisor] = {}

    def wait(*queries: SinkQuery) -> None:
        supervisors = [known.setdefault(id(query), _supervisor(query)) for query in queries]

        def look() -> bool:
            for supervisor in supervisors:
                supervisor.tick()
            return landed()

        eventually(look, LANDED_IN_S, "everything in the topics is committed")

    return wait


def _supervisor(query: SinkQuery) -> QuerySupervisor:
    return QuerySupervisor(query, _FASTER * LANDED_IN_S, lambda: _FASTER * time.monotonic())


@pytest.fixture
def until_landed(made_up: MadeUp, database: str) -> Callable[..., None]:
    """Wait for all records of the invented topics; see `supervising`."""
    return supervising(lambda: made_up.is_landed(database))


@pytest.fixture
def reader(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to read the test's database."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection
