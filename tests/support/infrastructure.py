"""A real PostgreSQL and a real broker for the session, each started on demand, with a separate database, topics and groups per
test."""

import os
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from psycopg import sql

from onefold import names
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import connect, create_topics, lag
from onefold.processor.loading import topology_of
from onefold.stack.embedded import Database, Infrastructure
from onefold.stack.embedded import database as database_alone
from onefold.stack.embedded import infrastructure as start
from onefold.stack.postgres import LOCALE
from tests.support.command_line import shell
from tests.support.waiting import eventually


def pytest_addoption(parser: pytest.Parser) -> None:
    """Option for a different PostgreSQL."""
    parser.addoption(
        "--postgres", type=Path, help="run on this PostgreSQL instead: the folder of its programs, with initdb"
    )


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """The embedded database, which starts in a second and needs no Java. The data are deleted with the session."""
    programs = request.config.getoption("--postgres")
    locale = LOCALE if programs is None else ("--locale=C",)
    with database_alone(tmp_path_factory.mktemp("postgres"), programs, locale) as running:
        yield running


@pytest.fixture(scope="session")
def infrastructure(postgres_server: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Infrastructure]:
    """The embedded broker beside the database. The data are deleted with the session."""
    with start(tmp_path_factory.mktemp("stack"), beside=postgres_server) as running:
        yield running


@pytest.fixture(scope="session")
def bootstrap_servers(infrastructure: Infrastructure) -> str:
    """Address of the broker."""
    return infrastructure.bootstrap_servers


@pytest.fixture(scope="session")
def postgres_dsn(postgres_server: Database) -> str:
    """Connection string of the server's own database; tests that write use `database`."""
    return postgres_server.dsn


@pytest.fixture
def client(bootstrap_servers: str) -> dict[str, str]:
    """librdkafka settings."""
    return {"bootstrap.servers": bootstrap_servers}


@pytest.fixture
def database(postgres_dsn: str) -> Iterator[str]:
    """Connection string of an empty database for this test alone."""
    with new_database(postgres_dsn) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def module_database(postgres_dsn: str) -> Iterator[str]:
    """Connection string of an empty database for the tests of this file alone."""
    with new_database(postgres_dsn) as dsn:
        yield dsn


#: Each test database is a copy of this template.
_TEMPLATE = "template1"
#: An emptied database is reused if these answers equal those of a new database.
_LIKE_NEW = """
    SELECT d.datacl, d.datallowconn, d.datconnlimit, d.datdba, n.nspacl, n.nspowner,
        (SELECT count(*) FROM pg_db_role_setting WHERE setdatabase = d.oid), (SELECT count(*) FROM pg_namespace),
        (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_type),
        (SELECT count(*) FROM pg_operator), (SELECT count(*) FROM pg_cast), (SELECT count(*) FROM pg_collation),
        (SELECT count(*) FROM pg_extension), (SELECT count(*) FROM pg_event_trigger), (SELECT count(*) FROM pg_publication),
        (SELECT count(*) FROM pg_default_acl), (SELECT count(*) FROM pg_largeobject_metadata)
    FROM pg_database d, pg_namespace n WHERE d.datname = current_database() AND n.nspname = 'public'"""
#: Revokes the default privileges of the whole database; those of a schema were dropped with the schema.
_REVOKES = """
    SELECT format('ALTER DEFAULT PRIVILEGES FOR ROLE %I REVOKE ALL ON %s FROM %I', pg_get_userbyid(defaclrole),
        CASE defaclobjtype WHEN 'r' THEN 'TABLES' WHEN 'S' THEN 'SEQUENCES' WHEN 'f' THEN 'FUNCTIONS' WHEN 'T' THEN 'TYPES'
        WHEN 'n' THEN 'SCHEMAS' END, pg_get_userbyid(grantee))
    FROM pg_default_acl, aclexplode(defaclacl) WHERE grantee NOT IN (0, defaclrole)"""
_EMPTY = """
    CREATE SCHEMA public AUTHORIZATION pg_database_owner;
    GRANT USAGE ON SCHEMA public TO PUBLIC;
    SELECT pg_stat_reset()"""
#: Emptied databases by server and process, because emptying a database is much faster than copying the template.
_spare: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
#: Answers to `_LIKE_NEW` of a new database, by server.
_new: dict[str, Any] = {}


@contextmanager
def new_database(postgres_dsn: str, template: str = _TEMPLATE) -> Iterator[str]:
    """Yield the connection string of a copy of an unused database."""
    spare, name = _spare[postgres_dsn, os.getpid()] if template == _TEMPLATE else [], f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        # Renamed, because a process left by an earlier test may still use the old name.
        made = sql.SQL("ALTER DATABASE {1} RENAME TO {0}" if spare else "CREATE DATABASE {0} TEMPLATE {1}")
        admin.execute(made.format(sql.Identifier(name), sql.Identifier(spare.pop() if spare else template)))
    dsn = psycopg.conninfo.make_conninfo(postgres_dsn, dbname=name)
    if template == _TEMPLATE and postgres_dsn not in _new:
        with psycopg.connect(dsn) as mine:
            _new[postgres_dsn] = mine.execute(_LIKE_NEW).fetchone()
    yield dsn
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [name])
        if template == _TEMPLATE and _is_emptied(postgres_dsn, dsn):
            spare.append(name)
        else:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _is_emptied(postgres_dsn: str, dsn: str) -> bool:
    """Drop all schemas of a database. Returns whether the database then equals a new one."""
    try:
        with psycopg.connect(dsn, autocommit=True) as mine:
            schemas = mine.execute("SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)'")
            names = sql.SQL(", ").join(sql.Identifier(name) for (name,) in schemas)
            mine.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(names))
            for (revoke,) in mine.execute(_REVOKES).fetchall():
                mine.execute(revoke)
            mine.execute(_EMPTY)
            return bool(mine.execute(_LIKE_NEW).fetchone() == _new[postgres_dsn])
    except psycopg.Error:  # no connection is allowed, or an object cannot be dropped
        return False


@pytest.fixture
def fresh_domain(client: dict[str, str]) -> Callable[..., Topology]:
    """Function that recreates a pipeline's topics, so that no records of earlier tests remain."""
    return partial(make_anew, client)


def make_anew(client: dict[str, str], domain: str, partitions: int = 2) -> Topology:
    """Delete and create a pipeline's topics."""
    topology = topology_of(domain)
    admin = connect(client)
    order = (topology.order,) if topology.order else ()
    named = (
        *topology.reads,
        *topology.outputs,
        *topology.dead.values(),
        topology.changelog,
        *order,
        names.pauses_topic(domain),
    )
    topics = tuple(dict.fromkeys(named))  # a feedback topic is both input and output
    delete_topics(admin, (*topics, topology.decisions, topology.replays))
    eventually(lambda: len(create_topics(topology, partitions, client)) == len(topics), 20, f"{domain}'s topics made")
    assert lag(topology, client) == 0
    return topology


def delete_topics(admin: AdminClient, topics: tuple[str, ...]) -> None:
    """Delete existing topics, and wait until the broker no longer lists them.

    Each topic is deleted by name, because the broker's list may lack a topic made a moment ago.
    """
    for future in admin.delete_topics(list(topics)).values():
        if (error := future.exception()) is not None and error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise error
    eventually(lambda: not set(topics) & set(admin.list_topics().topics), 20, f"{topics} are deleted")


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Root of the tested checkout."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture
def environment() -> dict[str, str]:
    """Environment for a child process: the present one without settings of the developer's own stack."""
    return shell()


def transactional(client: dict[str, Any], name: str) -> Producer:
    """A producer with initialised transactions.

    Args:
        name: the transactional id.
    """
    producer = Producer({**client, "transactional.id": name})
    # Connect first, because without a connection librdkafka looks for the coordinator only after 500 ms.
    producer.list_topics(timeout=20)
    producer.init_transactions(20)
    return producer


def set_topic(client: dict[str, str], topic: str, **settings: str) -> None:
    """Set topic settings by Kafka's names, with _ for the dots."""
    operations = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=operations)
    admin = AdminClient({**client})
    admin.incremental_alter_configs([resource])[resource].result(30)
