"""A real PostgreSQL and a real broker for the whole session, each for who needs it, and a database, topics and groups of its own
for each test."""

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


#: Each test database is a copy of this template.
_TEMPLATE = "template1"
#: An emptied database serves another test if these answers are those of a new database.
_LIKE_NEW = """
    SELECT d.datacl, d.datallowconn, d.datconnlimit, d.datdba, n.nspacl, n.nspowner,
        (SELECT count(*) FROM pg_db_role_setting WHERE setdatabase = d.oid), (SELECT count(*) FROM pg_namespace),
        (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_type),
        (SELECT count(*) FROM pg_operator), (SELECT count(*) FROM pg_cast), (SELECT count(*) FROM pg_collation),
        (SELECT count(*) FROM pg_extension), (SELECT count(*) FROM pg_event_trigger), (SELECT count(*) FROM pg_publication),
        (SELECT count(*) FROM pg_default_acl), (SELECT count(*) FROM pg_largeobject_metadata)
    FROM pg_database d, pg_namespace n WHERE d.datname = current_database() AND n.nspname = 'public'"""
#: Revokes the default privileges of the whole database; those of a schema went with the schema.
_REVOKES = """
    SELECT format('ALTER DEFAULT PRIVILEGES FOR ROLE %I REVOKE ALL ON %s FROM %I', pg_get_userbyid(defaclrole),
        CASE defaclobjtype WHEN 'r' THEN 'TABLES' WHEN 'S' THEN 'SEQUENCES' WHEN 'f' THEN 'FUNCTIONS' WHEN 'T' THEN 'TYPES'
        WHEN 'n' THEN 'SCHEMAS' END, pg_get_userbyid(grantee))
    FROM pg_default_acl, aclexplode(defaclacl) WHERE grantee NOT IN (0, defaclrole)"""
_EMPTY = """
    CREATE SCHEMA public AUTHORIZATION pg_database_owner;
    GRANT USAGE ON SCHEMA public TO PUBLIC;
    SELECT pg_stat_reset()"""
#: Databases that are like new, by server and process. To copy the template takes five times as long as to empty a database.
_spare: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
#: By server, what `_LIKE_NEW` says of a new one.
_new: dict[str, Any] = {}


@contextmanager
def new_database(postgres_dsn: str, template: str = _TEMPLATE) -> Iterator[str]:
    """The DSN of a copy of a database that nobody uses."""
    spare, name = _spare[postgres_dsn, os.getpid()] if template == _TEMPLATE else [], f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        # A spare database is renamed: a process that an earlier test left may still use the old name.
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
    """Drop all schemas of a database. Returns whether the database is like a new one then."""
    try:
        with psycopg.connect(dsn, autocommit=True) as mine:
            schemas = mine.execute("SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)'")
            names = sql.SQL(", ").join(sql.Identifier(name) for (name,) in schemas)
            mine.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(names))
            for (revoke,) in mine.execute(_REVOKES).fetchall():
                mine.execute(revoke)
            mine.execute(_EMPTY)
            return bool(mine.execute(_LIKE_NEW).fetchone() == _new[postgres_dsn])
    except psycopg.Error:  # it lets nobody in, or holds what cannot be dropped
        return False


@pytest.fixture
def fresh_domain(client: dict[str, str]) -> Callable[..., Topology]:
    """Makes a domain's topics anew, empty; whatever a test before this one left there is gone."""
    return partial(make_anew, client)


def make_anew(client: dict[str, str], domain: str, partitions: int = 2) -> Topology:
    """Delete a domain's topics, and create them."""
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
    topics = tuple(dict.fromkeys(named))  # of what a pipeline feeds itself, input and output are one topic
    delete_topics(admin, (*topics, topology.decisions, topology.replays))
    eventually(lambda: len(create_topics(topology, partitions, client)) == len(topics), 20, f"{domain}'s topics made")
    assert lag(topology, client) == 0
    return topology


def delete_topics(admin: AdminClient, topics: tuple[str, ...]) -> None:
    """Delete those that exist, and wait until the broker no longer knows them. The broker's list may lack a topic that was made a
    moment ago, so each is asked for.
    """
    for future in admin.delete_topics(list(topics)).values():
        if (error := future.exception()) is not None and error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise error
    eventually(lambda: not set(topics) & set(admin.list_topics().topics), 20, f"{topics} are deleted")


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the checkout that is tested."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment for a child process of a test: this one's, without settings of a stack that the developer may run."""
    return shell()


def transactional(client: dict[str, Any], name: str) -> Producer:
    """A producer that can begin a transaction.

    Args:
        name: the transactional id.
    """
    producer = Producer({**client, "transactional.id": name})
    # Without a connection librdkafka looks for the coordinator 500 ms later.
    producer.list_topics(timeout=20)
    producer.init_transactions(20)
    return producer


def set_topic(client: dict[str, str], topic: str, **settings: str) -> None:
    """Settings by Kafka's names, with _ for the dots."""
    operations = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=operations)
    admin = AdminClient({**client})
    admin.incremental_alter_configs([resource])[resource].result(30)
