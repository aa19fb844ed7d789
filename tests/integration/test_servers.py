"""`onefold check --servers` on a real Kafka and a real PostgreSQL: what keeps a service from its work, before one is started."""

import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from onefold import kafka_probe
from onefold.cli.main import run
from onefold.config.settings import Settings
from onefold.exit_codes import OK, REFUSED, UNAVAILABLE, USAGE
from onefold.operate import grants, servers
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import connect
from onefold.rights import Role
from tests.support.infrastructure import delete_topics
from tests.support.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.postgres]

# Nobody listens on it.
NOBODY = "127.0.0.1:1"


@pytest.fixture
def check(
    client: dict[str, str],
    database: str,
    fresh_domain: Callable[..., Topology],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs the command for a pipeline whose topics are there; the exit code, and what it said of the servers."""
    fresh_domain("runner")
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", client["bootstrap.servers"])
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", database)

    def asked(services: Sequence[str] = (), **settings: str) -> tuple[int, dict[str, Any]]:
        with monkeypatch.context() as patched:
            for name, value in settings.items():
                patched.setenv(f"ONEFOLD_{name}", value)
            code = run(["check", "runner", "--servers", "--json", *(f"--service={name}" for name in services)])
        said = json.loads(capsys.readouterr().out)
        assert said["runner"] == []
        return code, said["servers"]

    return asked


def test_servers_with_which_everything_can_start(check: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    code, said = check()
    assert (code, said["wrong"]) == (OK, [])
    kafka, postgres = said["servers"]
    assert kafka.endswith(": 1 broker, version 4.2")
    assert ": version " in postgres
    assert any("guaranteed" in note for note in said["notes"])
    assert any("one replica" in note for note in said["notes"])


@pytest.mark.parametrize(
    ("setting", "value", "answers"),
    [("BOOTSTRAP_SERVERS", NOBODY, "PostgreSQL"), ("POSTGRES_DSN", f"postgresql://me@{NOBODY}/mine", "Kafka")],
)
def test_a_server_that_is_away_does_not_hide_the_other_one(
    setting: str, value: str, answers: str, check: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    code, said = check(**{setting: value})
    assert code == UNAVAILABLE
    (sentence,) = said["wrong"]
    assert NOBODY in sentence
    (there,) = said["servers"]
    assert there.startswith(answers)


def test_topics_that_are_missing_are_made_by_a_command(
    client: dict[str, str], check: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    delete_topics(connect(client), ("runner.updates",))
    code, said = check()
    assert code == OK
    assert "runner: Kafka has no topic runner.updates: `onefold migrate` makes it" in said["notes"]


def test_partitions_that_differ_are_refused_before_a_processor_refuses_them(
    client: dict[str, str], check: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    admin = connect(client)
    eventually(lambda: "runner.changelog" in admin.list_topics().topics, 10, "the broker knows the topic")
    admin.create_partitions([NewPartitions("runner.updates", 3)])["runner.updates"].result(10)
    eventually(lambda: len(admin.list_topics().topics["runner.updates"].partitions) == 3, 10, "they are there")
    code, said = check()
    assert code == REFUSED
    assert any("runner.updates has 3 partitions" in sentence for sentence in said["wrong"])


@pytest.mark.parametrize(
    ("supports", "says", "code"),
    [
        (kafka_probe.Supported(9, 0), "is older than 2.8 and gives topics no ids", USAGE),
        (kafka_probe.Supported(13, 30), "Kafka 4.3 at ", OK),
        (kafka_probe.Supported(13, 33), "Kafka 4.4 at ", OK),
    ],
)
def test_releases_of_kafka_that_do_not_fit_are_named(
    supports: kafka_probe.Supported,
    says: str,
    code: int,
    check: Callable[..., tuple[int, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_probe, "supported", lambda *asked: supports)
    found, said = check()
    assert found == code
    assert any(says in sentence for sentence in said["wrong" if code else "notes"])


def test_a_role_that_lacks_rights_is_named_with_the_services_and_with_each_right(
    database: str, check: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    name = f"reader_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(database, autocommit=True) as admin:
        names = {**grants.NAMES, Role.READER: name}
        statements = grants.statements([], names, admin.info.dbname)
        admin.execute(
            f"CREATE SCHEMA onefold CREATE TABLE onefold.ledger (id int); CREATE ROLE {name} LOGIN PASSWORD 'x'".encode()
        )
        try:
            grants.apply(admin, [one for one in statements if one.role is Role.READER], names)
            dsn = psycopg.conninfo.make_conninfo(database, user=name, password="x")
            code, said = check(POSTGRES_DSN=dsn)
            assert code == OK
            assert any(
                f"the role {name} of PostgreSQL lacks rights for sink, operator: " in note for note in said["notes"]
            )
            assert check(POSTGRES_DSN=dsn, services=("reader",))[0] == OK
            code, said = check(POSTGRES_DSN=dsn, services=("sink",))
            assert code == REFUSED
            (sentence,) = said["wrong"]
            assert (
                "lacks for sink: INSERT on the table onefold.ledger, UPDATE on the table onefold.ledger. " in sentence
            )
            assert "`onefold grants` prints" in sentence
        finally:
            admin.execute(f"DROP SCHEMA onefold CASCADE; DROP OWNED BY {name}; DROP ROLE {name}".encode())


@pytest.mark.parametrize("off_s", [-90.0, 90.0])
def test_clocks_that_differ_are_named(off_s: float, client: dict[str, str], database: str) -> None:
    settings = Settings(bootstrap_servers=client["bootstrap.servers"], postgres_dsn=database)
    found = servers.check(settings, [], lambda: time.time() + off_s)
    assert any("differ by 90 s" in note for note in found.notes)
    assert found.exit_code == OK


def test_topics_of_other_pipelines_are_not_looked_at(
    client: dict[str, str], fresh_domain: Callable[..., Topology], check: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    other = fresh_domain("campaigns").changelog
    entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    kept = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, other, incremental_configs=[entry, kept])
    admin = connect(client)
    admin.incremental_alter_configs([resource])[resource].result(10)
    settings = Settings(bootstrap_servers=client["bootstrap.servers"], postgres_dsn="postgresql://127.0.0.1:1/none")
    eventually(
        lambda: any(other in one for one in servers.check(settings, ["campaigns"]).wrong), 10, "it is wrong for its own"
    )
    assert check()[0] == OK
    delete_topics(admin, (other,))
