"""What a real broker and a real PostgreSQL say of their settings, and what a processor, a sink and `status` make of it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from psycopg import sql

from onefold.cli import guarantees
from onefold.config.guarantee import FOLDED, LANDED, UNKNOWN_CONTRACTS, ServerFacts, TopicRole, TopicSettings, judge
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED
from onefold.jobs import topics
from onefold.operate import server_settings
from onefold.pipelines import find
from onefold.processor.core.errors import Refused
from onefold.processor.core.errors import Refused as Forbidden
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import connect as connect_admin
from onefold.processor.io.admin import create_topics, existing
from onefold.processor.loading import topology_of
from onefold.spark_sink.postgres.connection import connect
from onefold.stack.broker import Broker
from onefold.stack.child import Child
from onefold.stack.embedded import Infrastructure
from onefold.stack.ports import free_ports
from tests.support.coded import raises
from tests.support.command_line import Onefold
from tests.support.infrastructure import delete_topics, set_topic
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("guarantees")

DOMAIN = "campaigns"
ENDED_S = 120  # Spark starts in ten on an idle machine
PASSWORD = "open"
Fresh = Callable[..., Topology]


@pytest.fixture
def onefold(tmp_path: Path) -> Onefold:
    """The command line, without a stack of its own."""
    return Onefold(tmp_path)


@pytest.fixture
def servers(bootstrap_servers: str, database: str) -> dict[str, Any]:
    """The settings by which it finds the tests' servers."""
    return {"ONEFOLD_BOOTSTRAP_SERVERS": bootstrap_servers, "ONEFOLD_POSTGRES_DSN": database}


def findings(found: ServerFacts) -> dict[str, list[str]]:
    """By name of the rule what it concerns."""
    return {finding.name: list(finding.concerns) for finding in judge(found, ()).findings}


def test_topics_are_named_by_how_they_are_set(client: dict[str, str], fresh_domain: Fresh) -> None:
    """As they are made, each has one replica, and the log of transactions too: nothing else is to be said."""
    topology = fresh_domain(DOMAIN)
    roles = server_settings.roles_of(topology, replicated=False)
    made = {*topology.reads, *topology.outputs, *topology.dead.values(), topology.changelog}

    def named() -> dict[str, list[str]]:
        return findings(server_settings.of_topics(roles, client))

    # A topic that was made a moment ago is not yet in each answer about all topics.
    eventually(
        lambda: set(named().get("one_replica", ())) == {*made, server_settings.TRANSACTIONS}, 10, "all are there"
    )
    assert set(named()) == {"one_replica"}

    set_topic(client, topology.inputs[0], retention_ms="172800000")
    set_topic(client, topology.changelog, cleanup_policy="compact,delete", retention_bytes="1000")
    output = next(iter(topology.outputs))
    set_topic(client, output, cleanup_policy="compact")

    eventually(
        lambda: set(named()) == {"changelog_retention", "compaction", "one_replica", "retention"}, 10, "all named"
    )
    assert named()["retention"] == [f"{topology.inputs[0]} (2 d)"]
    assert named()["changelog_retention"] == [f"{topology.changelog} (1000 bytes)"]
    assert named()["compaction"] == [output]


def test_a_session_is_named_by_what_holds_for_it(postgres_dsn: str, database: str) -> None:
    """Also what its database alone says, and a table that does not survive a crash."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA mine")
        connection.execute("CREATE UNLOGGED TABLE mine.written (id int)")
        connection.execute("CREATE UNLOGGED TABLE mine.unwritten (id int)")
        connection.execute("CREATE TABLE mine.kept (id int)")
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(sql.Identifier(str(name))))
    with connect(database, "test") as connection:
        found = ServerFacts(
            postgres=server_settings.of_postgres(connection, ["mine.written", "mine.kept", "mine.missing"])
        )
    assert findings(found) == {"unlogged_tables": ["mine.written"], "synchronous_commit_off": ["PostgreSQL"]}


@pytest.mark.long  # 13 s
def test_a_processor_is_refused_until_it_is_allowed_by_name(
    client: dict[str, str], fresh_domain: Fresh, onefold: Onefold, servers: dict[str, Any]
) -> None:
    """With one sentence, and the exit code by which a person is asked; and then it says that nothing is guaranteed."""
    topology = fresh_domain(DOMAIN)
    set_topic(client, topology.changelog, cleanup_policy="delete", retention_ms="86400000")

    alone = {**servers, "ONEFOLD_PROCESSOR_INSTANCES": "1"}
    said = refused(onefold, **alone)
    assert f"{topology.changelog} (1 d): Kafka deletes the states" in said
    assert "accept it by name: ONEFOLD_ALLOW=changelog_retention" in said
    assert "Traceback" not in said

    with process(onefold, **alone, ONEFOLD_ALLOW="changelog_retention") as log:
        eventually(lambda: "task runs" in log.read_text(encoding="utf-8"), ENDED_S, "it folds")
        assert f"not guaranteed: {FOLDED}" in log.read_text(encoding="utf-8")
        assert f"broken, as allowed: {topology.changelog} (1 d)" in log.read_text(encoding="utf-8")


def test_a_processor_that_waits_for_its_topics_says_it_when_they_are_there(
    client: dict[str, str], fresh_domain: Fresh, onefold: Onefold, servers: dict[str, Any]
) -> None:
    """And nothing before that. As topics are made here, there is one line besides the promise."""
    topology = fresh_domain(DOMAIN)
    admin = connect_admin(client)
    # What the broker has not been told of yet would not be deleted.
    eventually(lambda: set(topology.inputs) <= existing(admin).keys(), 10, "the broker knows them")
    delete_topics(admin, topology.inputs)
    with process(onefold, **servers, ONEFOLD_PROCESSOR_INSTANCES="1") as log:
        eventually(lambda: "waiting" in log.read_text(encoding="utf-8"), ENDED_S, "it waits")
        assert "guaranteed" not in log.read_text(encoding="utf-8")
        create_topics(topology, 2, client)
        eventually(lambda: "task runs" in log.read_text(encoding="utf-8"), ENDED_S, "it folds")
        said = log.read_text(encoding="utf-8")
    assert said.count(f"{topology.name}: guaranteed: {FOLDED}") == 1
    assert said.count("weakened: ") == 1
    assert "one replica" in said


@pytest.mark.long  # 9 s
@pytest.mark.spark
def test_a_sink_is_refused_where_pages_may_tear(
    postgres_dsn: str, fresh_domain: Fresh, onefold: Onefold, servers: dict[str, Any]
) -> None:
    """full_page_writes is of the whole server, and is read again without a restart."""
    topology = fresh_domain(DOMAIN)
    settings = Settings(
        bootstrap_servers=servers["ONEFOLD_BOOTSTRAP_SERVERS"], postgres_dsn=servers["ONEFOLD_POSTGRES_DSN"]
    )
    say = guarantees.of_sink(settings, [find()[DOMAIN]])
    with (
        psycopg.connect(postgres_dsn, autocommit=True) as admin,
        connect(servers["ONEFOLD_POSTGRES_DSN"], "test") as connection,
    ):
        set_server(admin, "ALTER SYSTEM SET full_page_writes = off", "off")
        try:
            with pytest.raises(
                Refused, match=r"PostgreSQL: full_page_writes is off.*ONEFOLD_ALLOW=full_page_writes_off"
            ):
                eventually(lambda: say(DOMAIN, list(topology.outputs), connection), 10, "it is refused")
        finally:
            set_server(admin, "ALTER SYSTEM RESET full_page_writes", "on")

    sink = onefold.start("sink", DOMAIN, **servers)
    try:
        log = onefold.home / "sink.out"
        eventually(lambda: "writing from the positions" in log.read_text(encoding="utf-8"), ENDED_S, "it lands")
        assert f"{DOMAIN}: guaranteed: {LANDED}" in log.read_text(encoding="utf-8")
    finally:
        sink.terminate()
        assert sink.wait(30) == 0


def refused(onefold: Onefold, **settings: str) -> str:
    """A processor of the domain that ends by itself, with the exit code by which a person is asked; what it said."""
    running = onefold.start("process", DOMAIN, **settings)
    try:
        assert running.wait(ENDED_S) == REFUSED
    finally:
        running.kill()
        running.wait(10)
    return (onefold.home / "process.out").read_text(encoding="utf-8")


def set_server(admin: psycopg.Connection[Any], statement: str, value: str) -> None:
    """For all sessions, and wait until it holds."""
    admin.execute(statement.encode())
    admin.execute("SELECT pg_reload_conf()")
    eventually(
        lambda: admin.execute("SHOW full_page_writes").fetchone() == (value,), 10, f"full_page_writes is {value}"
    )


@pytest.mark.long  # 15 s
def test_a_query_that_starts_again_says_what_is_new_and_nothing_else(
    client: dict[str, str], fresh_domain: Fresh, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink starts its query anew after every trouble. What was changed meanwhile is found then, and refused if it must be."""
    topology, log = fresh_domain(DOMAIN), structlog.testing.CapturingLogger()
    monkeypatch.setattr(guarantees, "log", log)
    settings = Settings(bootstrap_servers=client["bootstrap.servers"], postgres_dsn=database)
    say, topics = guarantees.of_sink(settings, [find()[DOMAIN]]), list(topology.outputs)
    with connect(database, "test") as connection:
        say(DOMAIN, topics, connection)
        say(DOMAIN, topics, connection)
        assert [call.args[0].partition(":")[2].split(":")[0] for call in log.calls] == [" guaranteed", " weakened"]
        connection.execute("SET synchronous_commit = off")
        say(DOMAIN, topics, connection)
        assert "synchronous_commit is off" in log.calls[-1].args[0]
        set_topic(client, topics[0], cleanup_policy="compact")

        def is_refused() -> bool:
            try:
                say(DOMAIN, topics, connection)
            except Refused as error:
                return "ONEFOLD_ALLOW=compaction" in str(error)
            return False

        eventually(is_refused, 10, "it is refused")


def test_a_sink_that_sets_aside_what_it_cannot_read_says_so(
    client: dict[str, str], fresh_domain: Fresh, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its start; and `status` has it too."""
    topology, log = fresh_domain(DOMAIN), structlog.testing.CapturingLogger()
    monkeypatch.setattr(guarantees, "log", log)
    settings = Settings(bootstrap_servers=client["bootstrap.servers"], postgres_dsn=database, allow="unknown_contracts")
    with connect(database, "test") as connection:
        guarantees.of_sink(settings, [find()[DOMAIN]])(DOMAIN, list(topology.outputs), connection)
    assert log.calls[0].args[0].startswith(f"{DOMAIN}: not guaranteed")
    assert (
        log.calls[1].args[0].startswith(f"{DOMAIN}: broken, as allowed: {DOMAIN}: the sink rejects records of a schema")
    )
    concerned = [
        one
        for one in judge(server_settings.of_all(settings), settings.allowed()).findings
        if one.name == UNKNOWN_CONTRACTS
    ]
    assert [DOMAIN in one.concerns for one in concerned] == [True]


@pytest.mark.long  # 8 s
def test_status_says_it_end_to_end(
    client: dict[str, str], fresh_domain: Fresh, onefold: Onefold, servers: dict[str, Any]
) -> None:
    """In text and for programs, for all pipelines together."""
    topology = fresh_domain(DOMAIN)
    set_topic(client, topology.changelog, cleanup_policy="compact,delete", retention_ms="86400000")
    found = json.loads(onefold("status", "--json", **servers))["guarantee"]
    assert found["holds"] is False
    broken = {finding["name"]: finding for finding in found["findings"]}["changelog_retention"]
    assert (broken["breaks"], broken["allowed"]) == (True, False)
    assert broken["concerns"] == [f"{topology.changelog} (1 d)"]
    assert not found["unknown"]

    text = onefold("status", **servers, ONEFOLD_ALLOW="changelog_retention")
    assert "\nguarantee                not guaranteed: each record counts exactly once from input to table" in text
    assert f"broken, as allowed: {topology.changelog} (1 d)" in text
    assert "weakened: " in text


def test_status_without_postgres_says_unknown(fresh_domain: Fresh, onefold: Onefold, servers: dict[str, Any]) -> None:
    """Neither what is not known to be broken nor what is not known to be whole."""
    fresh_domain(DOMAIN)
    nowhere = {"ONEFOLD_POSTGRES_DSN": "postgresql://me@127.0.0.1:9/none"}
    without = json.loads(onefold("status", "--json", code=69, **servers | nowhere))["guarantee"]
    assert without["holds"] is None, without["findings"]
    assert len(without["unknown"]) == 1
    assert without["unknown"][0].startswith("PostgreSQL: it does not answer (")


@dataclass(frozen=True)
class WithRights(Broker):
    """The embedded broker, with a listener whose users may do what they were granted."""

    limited_port: int

    def configuration(self, data: Path) -> str:
        """What comes last counts."""
        here = f"PLAINTEXT://{self.bootstrap_servers}"
        limited = f"LIMITED://127.0.0.1:{self.limited_port}"
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
        lines = {
            "listeners": f"{here},CONTROLLER://127.0.0.1:{self.controller_port},{limited}",
            "advertised.listeners": f"{here},{limited}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LIMITED:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.name.limited.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.limited.plain.sasl.jaas.config": f'{plain} required user_ann="{PASSWORD}";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
        return super().configuration(data) + "".join(f"{name}={value}\n" for name, value in lines.items())


@pytest.fixture
def with_rights(infrastructure: Infrastructure, tmp_path: Path) -> Iterator[WithRights]:
    """A broker of the test's own; ann may read, write and describe topics, and not ask how they are set."""
    ours = infrastructure.broker
    port, controller, limited = free_ports(3)
    broker = WithRights(tmp_path / "kafka", port, controller, ours.java, ours.jars, limited)
    broker.prepare()
    child = Child(broker.service(tmp_path / "kafka.log"))
    child.start()
    try:
        child.wait_ready()
        granted = [
            *((ResourceType.TOPIC, operation) for operation in (AclOperation.READ, AclOperation.WRITE)),
            (ResourceType.GROUP, AclOperation.READ),
            (ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE),
        ]
        acls = [
            AclBinding(kind, "*", ResourcePatternType.LITERAL, "User:ann", "*", operation, AclPermissionType.ALLOW)
            for kind, operation in granted
        ]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for made in admin.create_acls(acls).values():
            made.result(ENDED_S)
        yield broker
    finally:
        child.ask_to_stop()
        child.stop()


@pytest.mark.long  # 14 s
def test_a_broker_that_does_not_say_how_topics_are_set_keeps_nobody_from_starting(
    with_rights: WithRights, onefold: Onefold
) -> None:
    """What it says, as how many replicas there are, is said; the rest is unknown."""
    everything = {"bootstrap.servers": with_rights.bootstrap_servers}
    # Before the first transaction there is no log of them, and the broker says how it will be.
    to_be = TopicSettings(server_settings.TRANSACTIONS, TopicRole.TRANSACTIONS, 1, {"min.insync.replicas": "1"})
    assert server_settings.of_topics([], everything) == ServerFacts([to_be])
    create_topics(topology_of(DOMAIN), 1, everything)
    options = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": PASSWORD,
    }
    settings = {
        "ONEFOLD_BOOTSTRAP_SERVERS": f"127.0.0.1:{with_rights.limited_port}",
        "ONEFOLD_KAFKA_OPTIONS": json.dumps(options),
    }
    with process(onefold, **settings) as log:
        eventually(lambda: "task runs" in log.read_text(encoding="utf-8"), ENDED_S, "it folds")
        said = log.read_text(encoding="utf-8")
    assert f"guaranteed, as far as is known: {FOLDED}" in said
    assert "one replica" in said
    assert "Kafka does not say how it is set (TOPIC_AUTHORIZATION_FAILED)" in said
    assert "broken" not in said
    limited = {**options, "bootstrap.servers": settings["ONEFOLD_BOOTSTRAP_SERVERS"]}
    (queue,) = topology_of(DOMAIN).inputs
    with raises(Forbidden, Code.KAFKA_RIGHT, queue):
        topics.create(connect_admin(limited), queue)  # nor does a worker wait for the right to make topics


@contextmanager
def process(onefold: Onefold, **settings: str) -> Iterator[Path]:
    """A processor of the domain, stopped at the end; gives its log."""
    running = onefold.start("process", DOMAIN, **settings)
    try:
        yield onefold.home / "process.out"
    finally:
        running.terminate()
        running.wait(30)
