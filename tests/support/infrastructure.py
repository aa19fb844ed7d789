"""A real PostgreSQL and a real broker for the whole session, each for who needs it, and a database, topics and groups of its own
for each test."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from psycopg import sql

from onefold.processor.core.errors import Retriable
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import connect, create_topics, lag
from onefold.processor.loading import topology_of
from onefold.stack.embedded import Database, Infrastructure
from onefold.stack.embedded import database as database_alone
from onefold.stack.embedded import infrastructure as start
from onefold.stack.postgres import LOCALE
from tests.support.waiting import eventually


def pytest_addoption(parser: pytest.Parser) -> None:
    """For another PostgreSQL."""
    parser.addoption(
        "--postgres", type=Path, help="run on this PostgreSQL instead: the folder of its programs, with initdb"
    )


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """The embedded database, which needs a second and no Java; its data goes with the session."""
    programs = request.config.getoption("--postgres")
    locale = LOCALE if programs is None else ("--locale=C",)
    with database_alone(tmp_path_factory.mktemp("postgres"), programs, locale) as running:
        yield running


@pytest.fixture(scope="session")
def infrastructure(postgres_server: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Infrastructure]:
    """The embedded broker beside the database; its data goes with the session."""
    with start(tmp_path_factory.mktemp("stack"), beside=postgres_server) as running:
        yield running


@pytest.fixture(scope="session")
def bootstrap_servers(infrastructure: Infrastructure) -> str:
    """Where the broker listens."""
    return infrastructure.bootstrap_servers


@pytest.fixture(scope="session")
def postgres_dsn(postgres_server: Database) -> str:
    """The server's own database; tests that write take `database`."""
    return postgres_server.dsn


@pytest.fixture
def client(bootstrap_servers: str) -> dict[str, str]:
    """librdkafka settings."""
    return {"bootstrap.servers": bootstrap_servers}


@pytest.fixture
def database(postgres_dsn: str) -> Iterator[str]:
    """The DSN of an empty database that only this test uses."""
    with new_database(postgres_dsn) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def module_database(postgres_dsn: str) -> Iterator[str]:
    """The DSN of an empty database that only the tests of this file use."""
    with new_database(postgres_dsn) as dsn:
        yield dsn


@contextmanager
def new_database(postgres_dsn: str, template: str = "template1") -> Iterator[str]:
    """The DSN of a copy of a database that nobody uses."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        admin.execute(made.format(sql.Identifier(name), sql.Identifier(template)))
    yield psycopg.conninfo.make_conninfo(postgres_dsn, dbname=name)
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def fresh_domain(client: dict[str, str]) -> Callable[..., Topology]:
    """Makes a domain's topics anew, empty; whatever a test before this one left there is gone."""
    return partial(make_anew, client)


def make_anew(client: dict[str, str], domain: str, partitions: int = 2) -> Topology:
    """Delete a domain's topics, and create them."""
    topology = topology_of(domain)
    admin = connect(client)
    order = (topology.order,) if topology.order else ()
    named = (*topology.reads, *topology.outputs, *topology.dead.values(), topology.changelog, *order)
    topics = tuple(dict.fromkeys(named))  # of what a pipeline feeds itself, input and output are one topic
    delete_topics(admin, (*topics, topology.decisions, topology.replays))
    eventually(lambda: len(create_topics(topology, partitions, client)) == len(topics), 20, f"{domain}'s topics made")
    eventually(lambda: _answer(topology, client), 20, f"{domain}'s topics have leaders")
    return topology


def _answer(topology: Topology, client: dict[str, str]) -> bool:
    """A broker is told of a new topic before its partitions have a leader."""
    try:
        return lag(topology, client) == 0
    except Retriable:
        return False


def delete_topics(admin: AdminClient, topics: tuple[str, ...]) -> None:
    """Delete those that exist, and wait until the broker no longer knows them."""
    there = admin.list_topics().topics
    for future in admin.delete_topics([topic for topic in topics if topic in there] or ["none"]).values():
        try:
            future.result()
        except KafkaException:
            continue
    eventually(lambda: not set(topics) & set(admin.list_topics().topics), 20, f"{topics} are deleted")


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the checkout that is tested."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment for a child process of a test: this one's, without settings of a stack that the developer may run."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("ONEFOLD_") or name == "ONEFOLD_CACHE"
    }
