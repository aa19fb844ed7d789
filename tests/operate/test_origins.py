"""Where settings come from, what is shown of them, and names that are nearly those of settings."""

import json
import os
from pathlib import Path

import pytest

from onefold.cli.main import run
from onefold.config import redaction, settings
from onefold.config.errors import UserError
from onefold.config.origins import DEFAULT, ENVIRONMENT, NO_SETTINGS, STACK, origins
from onefold.error_codes import Code
from tests.support.coded import raises

pytestmark = pytest.mark.promise("settings-and-secrets")

SECRET = "s3cret"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working folder within a project, without settings of the developer."""
    for name in list(os.environ):
        if name.startswith("ONEFOLD_"):
            monkeypatch.delenv(name)
    (tmp_path / "pyproject.toml").write_text("[tool.onefold]\n", encoding="utf-8")
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    return tmp_path


def test_each_place_wins_over_the_ones_behind_it(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "onefold.env").write_text("ONEFOLD_SINKS=2\nONEFOLD_PARTITIONS=2\nONEFOLD_REPLICAS=2\n", encoding="utf-8")
    Path("onefold.env").write_text("ONEFOLD_PARTITIONS=3\nONEFOLD_REPLICAS=3\n", encoding="utf-8")
    monkeypatch.setenv("ONEFOLD_REPLICAS", "4")

    found = origins(settings.load(), {}, settings.files())

    assert found["sinks"] == (2, str(folder / "onefold.env"))
    assert found["partitions"] == (3, "onefold.env")
    assert found["replicas"] == (4, ENVIRONMENT)
    assert found["kafka_port"] == (29092, DEFAULT)


def test_servers_of_the_running_stack_come_from_it() -> None:
    running = {"postgres_dsn": f"postgresql://me:{SECRET}@127.0.0.1/onefold"}
    found = origins(settings.load(), running, ())
    assert found["postgres_dsn"] == ("postgresql://me@127.0.0.1/onefold", STACK)
    assert found["bootstrap_servers"] == (None, DEFAULT)


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": SECRET,
    }
    monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS", json.dumps(options))
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", f"postgresql://me:{SECRET}@db/onefold")
    monkeypatch.setenv("ONEFOLD_SCHEMA_REGISTRY_URL", f"https://me:{SECRET}@registry:8081/path")
    monkeypatch.setenv("ONEFOLD_OBJECTS_ENDPOINT", f"https://me:{SECRET}@store")
    monkeypatch.setenv("ONEFOLD_SPARK_KAFKA_SSL_KEYSTORE_KEY", SECRET)
    Path("onefold.env").write_text(f"ONEFOLD_SPARK_KAFKA_CLIENT_ID={SECRET}\n", encoding="utf-8")
    for arguments in (["config"], ["config", "--json"]):
        assert run(arguments) == 0
        said = capsys.readouterr().out
        assert SECRET not in said
        assert "sasl_ssl" in said
        assert "https://me:***@registry:8081/path" in said
    shown = json.loads(said)
    assert shown["ONEFOLD_POSTGRES_DSN"] == {"value": "postgresql://me@db/onefold", "from": ENVIRONMENT}
    assert shown["ONEFOLD_SPARK_KAFKA_SSL_KEYSTORE_KEY"] == {"value": "***", "from": ENVIRONMENT}
    assert shown["ONEFOLD_SPARK_KAFKA_CLIENT_ID"] == {"value": "***", "from": "onefold.env"}
    assert "ONEFOLD_SPARK_KAFKA" not in shown


@pytest.mark.parametrize(
    "url", ["http://registry:8081", "https://me@registry/a:b@c", "me@host:9", "one:9,other:9", "file:///a:b@c"]
)
def test_an_address_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert redaction.address(url) == url


@pytest.mark.parametrize("password", [SECRET, f"a/{SECRET}", f"a,{SECRET}", f"a@{SECRET}"])
def test_an_address_without_a_scheme_is_told_without_its_password(password: str) -> None:
    """As one of Kafka has none. What cannot be told from the password goes with it."""
    assert redaction.address(f"me:{password}@host:9") == "me:***@host:9"
    assert SECRET not in redaction.address(f"one:9,me:{password}@host:9,you:{password}@other:9")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ONEFOLD_POSTGRES_DNS", "ONEFOLD_POSTGRES_DSN"),
        ("ONEFOLD_SINK", "ONEFOLD_SINKS"),
        ("ONEFOLD_BOOTSTRAP_SERVER", "ONEFOLD_BOOTSTRAP_SERVERS"),
        ("ONEFOLD_PROCESOR_INSTANCES", "ONEFOLD_PROCESSOR_INSTANCES"),
        ("ONEFOLD_BOOTSTRAP", "ONEFOLD_BOOTSTRAP_SERVERS"),
        ("ONEFOLD_SPARK_KAFKA", "ONEFOLD_SPARK_KAFKA_<JAVA_NAME>"),
        ("onefold_partition", "ONEFOLD_PARTITIONS"),
    ],
)
@pytest.mark.parametrize("where", ["environment", "file"])
def test_a_misspelt_name_is_named(name: str, meant: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the stack would run with what was not meant, and say nothing."""
    if where == "environment":
        monkeypatch.setenv(name, "1")
    else:
        Path("onefold.env").write_text(f"{name}=1\n", encoding="utf-8")
    written = name if where == "environment" else name.upper()
    with raises(UserError, Code.SETTING_WRONG, str(written), str(meant)) as caught:
        settings.load()
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["ONEFOLD_ROOM", "ONEFOLD_STATUS_FILE", "ONEFOLD_PROJECT", "SINK"])
def test_what_resembles_no_setting_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv(name, str(folder))
    settings.load()


def test_what_is_no_setting_is_named_where_settings_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """But for what Onefold reads elsewhere, and what it sets itself for those that it starts."""
    for name in ("ONEFOLD_DSN", "onefold_room", "ROOM", *NO_SETTINGS):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("ONEFOLD_FAIL_MAP_PCT", "1")
    monkeypatch.setenv("ONEFOLD_SPARK_KAFKA_CLIENT_ID", "a")
    Path("onefold.env").write_text("ONEFOLD_COLOUR=1\nONEFOLD_SINKS=2\n", encoding="utf-8")
    for arguments in (["config"], ["config", "--json"]):
        assert run(arguments) == 0
        told = capsys.readouterr()
        assert told.err.splitlines() == [
            f"{name} is no setting" for name in ("ONEFOLD_COLOUR", "ONEFOLD_DSN", "onefold_room")
        ]
        assert "ONEFOLD_SINKS" in told.out
