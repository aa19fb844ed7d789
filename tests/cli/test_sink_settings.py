"""Settings that the command hands to the sink."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.cli import main
from onefold.spark_sink import service
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
