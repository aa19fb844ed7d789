"""Settings that the command hands to the sink."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.cli import logins, main
from onefold.config.settings import load
from onefold.spark_sink import service
from onefold.spark_sink.plan import Logins, Plan
from onefold.stack import jars, java


@pytest.mark.parametrize(("allow", "unknown"), [("", False), ("fsync_off", False), ("unknown_contracts", True)])
def test_records_of_unknown_contracts_are_set_aside_only_when_that_is_allowed_by_name(
    allow: str, unknown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "HOME": str(tmp_path),
        "ALLOW": allow,
        "BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "POSTGRES_DSN": "host=127.0.0.1",
    }.items():
        monkeypatch.setenv(f"ONEFOLD_{name}", value)
    found: dict[str, Any] = {}
    monkeypatch.setattr(service, "run", lambda pipelines, **given: found.update(given) or 0)
    monkeypatch.setattr(java, "locate", lambda cache: SimpleNamespace(executable=tmp_path, spark_home=tmp_path))
    monkeypatch.setattr(jars, "ensure", lambda *given: [])

    assert main.run(["sink", "runner"]) == 0
    assert found["unknown_contracts"] is unknown


def test_a_query_starts_with_the_logins_that_its_files_have_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-written file, or a certificate that cannot be read, changes nothing."""
    options, dsn = tmp_path / "options", tmp_path / "dsn"
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", "kafka:9092")
    monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS_FILE", str(options))
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN_FILE", str(dsn))
    login = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": "ann"}

    def write(password: str, **more: str) -> None:
        options.write_text(json.dumps({**login, "sasl.password": password, **more}), encoding="utf-8")
        dsn.write_text(f"postgresql://ann:{password}@db/events", encoding="utf-8")

    write("first")
    settings = load()
    first = Logins(settings.librdkafka, settings.postgres())
    domain: Any = None
    plan = Plan(
        domain, {}, first.postgres_dsn, "sink-1", sql_root=tmp_path, checkpoint_root=tmp_path, step=lambda name: None
    )
    given: list[dict[str, str]] = []
    topics: Any = SimpleNamespace(renew=given.append)

    def renewed() -> Plan:
        return service._renewed(
            plan, logins=lambda: logins.now(first), servers="kafka:9092", spark_kafka={}, topics=topics
        )

    write("second")
    assert 'password="second"' in renewed().java_options["sasl.jaas.config"]
    assert given[-1]["sasl.password"] == "second"
    assert renewed().postgres_dsn == "postgresql://ann:second@db/events"
    options.write_text('{"sasl.pass', encoding="utf-8")
    assert renewed().postgres_dsn == "postgresql://ann:first@db/events"
    write("third", **{"ssl.certificate.location": "/nowhere", "ssl.key.location": "/nowhere"})
    assert renewed() is plan
