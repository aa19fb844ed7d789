"""One Spark session for all tests, and for each test a domain that nobody has ever heard of, with its own database."""

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
from onefold.spark_sink.kafka.topics import Topics
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.spark.query import Query
from onefold.spark_sink.spark.session import Driver
from onefold.spark_sink.supervisor import QuerySupervisor
from onefold.stack.embedded import Infrastructure
from onefold.testing import Crash
from tests.support.made_up_domain import MadeUp, write_domain
from tests.support.waiting import eventually

T = TypeVar("T")

# A cold JVM of Spark, on two cores that something else has as well: by far the slowest that was seen.
LANDED_IN_S = 150
# Nobody listens there.
NOWHERE = "127.0.0.1:9"
# The factor of a supervisor's clock in tests: its pauses and audits then take milliseconds.
_FASTER = 25


@pytest.fixture(scope="session")
def spark(infrastructure: Infrastructure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The sink's own session, as the service starts it."""
    java_home = str(infrastructure.java.spark_home)
    session = Driver(infrastructure.spark_jars, java_home, tmp_path_factory.mktemp("spark")).start()
    yield session
    session.stop()


@pytest.fixture
def domain_servers(request: pytest.FixtureRequest) -> str:
    """Where the topics of a test are; nowhere for one that has none, for which no broker is started."""
    has_broker = "infrastructure" in request.fixturenames
    return request.getfixturevalue("bootstrap_servers") if has_broker else NOWHERE


@pytest.fixture
def made_up(tmp_path: Path, checkout: Path, domain_servers: str) -> Iterator[MadeUp]:
    """A domain of this test alone: contracts, tables and merges in `tmp_path`. Its topics are not made yet."""
    name = f"t{uuid.uuid4().hex[:10]}"
    write_domain(tmp_path, checkout, name)
    with closing(MadeUp(name, tmp_path, domain_servers)) as made:
        yield made


@pytest.fixture
def made_up_topics(bootstrap_servers: str, made_up: MadeUp) -> None:
    """Two topics of two partitions each."""
    made_up.create_topics(partitions=2)


@pytest.fixture
def sink_topics(domain_servers: str) -> Iterator[Topics]:
    """The sink's clients of Kafka."""
    with closing(Topics(domain_servers, {})) as topics:
        yield topics


@pytest.fixture
def plan(made_up: MadeUp, database: str, domain_servers: str, tmp_path: Path) -> Plan:
    """How to land the made-up domain."""
    return Plan(
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
    """Without the stories of failures, as a service's log: to render one takes longer than to start again."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    yield
    structlog.configure(**before)


@pytest.fixture
def query(spark: SparkSession, plan: Plan, sink_topics: Topics, brief_logs: None) -> Iterator[Callable[..., Query]]:
    """Makes queries over `plan`, with changes; stops them at the end."""
    made: list[Query] = []

    def make(**changes: Any) -> Query:
        made.append(Query(lambda: spark, replace(plan, **changes), sink_topics))
        return made[-1]

    yield make
    for one in made:
        one.stop()


#: Starts the sink of a pipeline of the checkout as a query of the session's Spark, with changes of its plan.
SinkHere = Callable[..., QuerySupervisor]


@pytest.fixture
def sink_here(query: Callable[..., Query], checkout: Path) -> SinkHere:
    """Starts sinks without a JVM of their own; stops them at the end."""

    def start(name: str, **changes: Any) -> QuerySupervisor:
        root = checkout / "sql"
        made = query(domain=load_domain(name, checkout / "avro", root), sql_root=root, **changes)
        supervisor = QuerySupervisor(made, LANDED_IN_S, time.monotonic)
        supervisor.tick()
        return supervisor

    return start


class CrashOnce:
    """A step of a sink that fails at one hit of one name, as if the sink were killed there.

    Attributes:
        crashed: whether that has happened.
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
    """The condition, for `eventually`; before each look the supervisor starts a query that has ended."""

    def look() -> T:
        sink.tick()
        return condition()

    return look


def supervising(landed: Callable[[], bool]) -> Callable[..., None]:
    """Supervise queries, as the service does, until `landed`. A query keeps its supervisor."""
    known: dict[int, QuerySupervisor] = {}

    def wait(*queries: Query) -> None:
        supervisors = [known.setdefault(id(query), _supervisor(query)) for query in queries]

        def look() -> bool:
            for supervisor in supervisors:
                supervisor.tick()
            return landed()

        eventually(look, LANDED_IN_S, "everything in the topics is committed")

    return wait


def _supervisor(query: Query) -> QuerySupervisor:
    return QuerySupervisor(query, _FASTER * LANDED_IN_S, lambda: _FASTER * time.monotonic())


@pytest.fixture
def until_landed(made_up: MadeUp, database: str) -> Callable[..., None]:
    """See `supervising`; everything is what the made-up topics hold."""
    return supervising(lambda: made_up.is_landed(database))


@pytest.fixture
def reader(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that looks at the test's database."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection
