"""Settings: what is wrong is told in one sentence that names the variable; servers come from the user or from the
running stack.
"""

import json
import os
from pathlib import Path

import psutil
import pytest

from onefold.config import origins, settings, stack_state
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.replication import Replication
from tests.support.coded import raises


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No settings of the developer, and a home of the test's own."""
    for name in list(os.environ):
        if name.startswith("ONEFOLD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ONEFOLD_PARTITIONS", "zero"),
        ("ONEFOLD_PARTITIONS", "0"),
        ("ONEFOLD_KAFKA_PORT", "70000"),
        ("ONEFOLD_LOG_FORMAT", "xml"),
        ("ONEFOLD_KAFKA_OPTIONS", "not json"),
        ("ONEFOLD_KAFKA_OPTIONS", '["a"]'),
    ],
)
def test_a_broken_setting_is_one_sentence_that_names_it(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        settings.load()
    assert name in caught.value.message
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"group.id": "mine"}, "'group.id' is Onefold's own"),
        ({"bootstrap.servers": "other:1"}, "'bootstrap.servers' has a variable of its own: ONEFOLD_BOOTSTRAP_SERVERS"),
        ({"no.such": "1"}, "'no.such' is Onefold's own or unknown"),
        ({"ssl.cipher.suites": "x"}, "set ONEFOLD_SPARK_KAFKA_SSL_CIPHER_SUITES to the value for Kafka's Java client"),
        ({"ssl.key.password": "hush"}, "'ssl.key.password' cannot be translated for the sink"),
        ({"sasl.mechanism": "PLAIN", "sasl.password": "hush"}, "'sasl.username' is missing"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": 1, "sasl.password": "hush"}, "should be a valid string"),
    ],
)
def test_a_kafka_setting_that_one_client_cannot_have_is_refused_for_all(
    options: dict[str, object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every command, in one sentence, and without a password in it."""
    monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS", json.dumps(options))
    with pytest.raises(UserError) as caught:
        settings.load()
    assert caught.value.message.startswith("ONEFOLD_KAFKA_OPTIONS cannot be used:")
    assert sentence in caught.value.message
    assert caught.value.exit_code == 2
    assert "hush" not in caught.value.message + str(caught.value.hint)


@pytest.mark.parametrize("where", ["environment", "file"])
def test_a_setting_of_the_java_client_replaces_a_translation(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the environment, or in a file, under a name in any case."""
    monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS", '{"ssl.cipher.suites": "x"}')
    if where == "environment":
        monkeypatch.setenv("onefold_spark_kafka_ssl_cipher_suites", "Y")
    else:
        (tmp_path / "onefold.env").write_text("ONEFOLD_SPARK_KAFKA_SSL_CIPHER_SUITES=Y\n", encoding="utf-8")
    assert settings.load().spark_kafka == {"ssl.cipher.suites": "Y"}


def test_an_empty_variable_unsets_a_setting_of_the_java_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "onefold.env").write_text(
        "ONEFOLD_SPARK_KAFKA_CLIENT_ID=a\nONEFOLD_SPARK_KAFKA_CLIENT_RACK=b\n", encoding="utf-8"
    )
    monkeypatch.setenv("ONEFOLD_SPARK_KAFKA_CLIENT_ID", "")
    loaded = settings.load()
    assert loaded.spark_kafka == {"client.rack": "b"}
    made = loaded.as_environment()
    assert made["ONEFOLD_SPARK_KAFKA_CLIENT_ID"] == ""
    assert made["ONEFOLD_SPARK_KAFKA_CLIENT_RACK"] == "b"
    assert "ONEFOLD_SPARK_KAFKA" not in made


@pytest.mark.parametrize("name", ["GROUP_ID", "ISOLATION_LEVEL", "KEY_DESERIALIZER", "AUTO_OFFSET_RESET", "SUBSCRIBE"])
def test_onefolds_own_settings_are_refused_for_the_java_client(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"ONEFOLD_SPARK_KAFKA_{name}", "hush")
    with raises(UserError, Code.SETTING_WRONG, "ONEFOLD_SPARK_KAFKA_<JAVA_NAME> cannot be used:") as caught:
        settings.load()
    assert f"{name.lower().replace('_', '.')!r} is Onefold's own" in caught.value.message
    assert caught.value.exit_code == 2
    assert "hush" not in caught.value.message + str(caught.value.hint)


def test_all_broken_settings_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_PARTITIONS", "many")
    monkeypatch.setenv("ONEFOLD_SINKS", "0")
    with pytest.raises(UserError) as caught:
        settings.load()
    assert "ONEFOLD_PARTITIONS" in caught.value.message
    assert "ONEFOLD_SINKS" in caught.value.message


def test_without_servers_and_without_a_stack_the_error_says_what_to_do() -> None:
    with raises(UserError, Code.STACK_STOPPED) as caught:
        settings.load().client()
    assert "onefold up" in caught.value.hint
    assert "ONEFOLD_BOOTSTRAP_SERVERS" in caught.value.hint


def test_servers_come_from_the_running_stack(clean: Path) -> None:
    me = psutil.Process()
    stack_state.write(
        stack_state.path(clean),
        {
            "supervisor_pid": me.pid,
            "create_time": me.create_time(),
            "bootstrap_servers": "127.0.0.1:1",
            "postgres_dsn": "x",
        },
    )
    loaded = settings.load()
    assert loaded.client() == {"bootstrap.servers": "127.0.0.1:1"}
    assert loaded.postgres() == "x"


def test_a_stack_whose_supervisor_is_gone_is_not_running(clean: Path) -> None:
    me = psutil.Process()
    stack_state.write(
        stack_state.path(clean),
        {"supervisor_pid": me.pid, "create_time": me.create_time() - 1, "bootstrap_servers": "127.0.0.1:1"},
    )
    with raises(UserError, Code.STACK_STOPPED):
        settings.load().kafka()


def test_servers_of_the_user_win_and_options_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", "kafka:9092")
    monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS", '{"security.protocol": "SSL"}')
    assert settings.load().client() == {"bootstrap.servers": "kafka:9092", "security.protocol": "SSL"}


def test_a_file_may_hold_the_password_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kubernetes mounts a secret. Neither the children's environment nor `config` has it."""
    login = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    (tmp_path / "options.json").write_text('{"sasl.password": "hunter2", "sasl.username": "nobody"}', encoding="utf-8")
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", "kafka:9092")
    monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS", json.dumps(login))
    monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS_FILE", "options.json")
    found = settings.load()
    assert found.client() == {"bootstrap.servers": "kafka:9092", **login, "sasl.password": "hunter2"}
    assert "hunter2" not in json.dumps(found.as_environment())
    assert found.as_environment()["ONEFOLD_KAFKA_OPTIONS_FILE"] == str(tmp_path / "options.json")


@pytest.mark.parametrize(
    "content",
    [
        *(None, b"", b"[1]", b"\xff", b"[" * 100_000),
        *(b'{"sasl.password": 1}', b'{"client.id": "\\ud800"}', b'{"group.id": "mine"}'),
    ],
)
def test_a_file_of_options_that_cannot_be_used(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "options.json"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS_FILE", str(file))
    with raises(UserError, Code.SETTING_WRONG, "ONEFOLD_KAFKA_OPTIONS"):
        settings.load()


def test_a_file_may_hold_the_database_and_its_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "dsn"
    file.write_text("postgresql://me:hunter2@db/events\n", encoding="utf-8")
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN_FILE", str(file))
    found = settings.load()
    assert found.postgres() == "postgresql://me:hunter2@db/events"
    assert "hunter2" not in json.dumps(found.as_environment())
    shown = origins.origins(found, {}, settings.files())["postgres_dsn"]
    assert shown == ("postgresql://me@db/events", str(file))
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", "postgresql://you@db/others")
    assert settings.load().postgres() == "postgresql://you@db/others"
    monkeypatch.delenv("ONEFOLD_POSTGRES_DSN")
    file.write_bytes(b"postgresql://me:hunter2@db:x/events")
    with raises(UserError, Code.SETTING_WRONG) as caught:
        settings.load()
    assert "hunter2" not in caught.value.as_text()


def test_a_secret_of_the_environment_wins_over_a_file_of_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image into which somebody has copied the settings of a laptop."""
    login = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "mine"}
    (tmp_path / "onefold.env").write_text(
        f"ONEFOLD_POSTGRES_DSN=postgresql://dev@laptop/d\nONEFOLD_KAFKA_OPTIONS={json.dumps(login)}\n", encoding="utf-8"
    )
    (tmp_path / "dsn").write_text("postgresql://me:hunter2@db/events", encoding="utf-8")
    (tmp_path / "kafka.json").write_text("{}", encoding="utf-8")
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN_FILE", str(tmp_path / "dsn"))
    monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS_FILE", str(tmp_path / "kafka.json"))
    found = settings.load()
    assert found.postgres() == "postgresql://me:hunter2@db/events"
    assert found.librdkafka == {}
    assert "hunter2" not in json.dumps(found.as_environment())
    with monkeypatch.context() as child:
        for name, value in found.as_environment().items():
            child.setenv(name, value)
        assert settings.load().librdkafka == {}
        assert settings.load().postgres() == "postgresql://me:hunter2@db/events"
    (tmp_path / "onefold.env").write_text("ONEFOLD_POSTGRES_DSN_FILE=nowhere\n", encoding="utf-8")
    monkeypatch.delenv("ONEFOLD_POSTGRES_DSN_FILE")
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", "postgresql://you@db/others")
    with raises(UserError, Code.SETTING_WRONG, "nowhere"):
        settings.load()


def test_no_options_in_the_environment_unset_those_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `demo` does, whose Kafka asks for no login."""
    (tmp_path / "onefold.env").write_text('ONEFOLD_KAFKA_OPTIONS={"client.id": "mine"}\n', encoding="utf-8")
    assert settings.load().librdkafka == {"client.id": "mine"}
    monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS", "{}")
    assert settings.load().librdkafka == {}


def test_an_empty_variable_is_an_unset_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of a file, whatever its value is: a text, a number, an object in JSON."""
    defaults = settings.load()
    given = {"PARTITIONS": "7", "KAFKA_OPTIONS": '{"client.id": "mine"}', "SINK_INTERVAL_S": "3", "DASHBOARD": "off"}
    lines = [f"ONEFOLD_{name}={value}\n" for name, value in given.items()]
    (tmp_path / "onefold.env").write_text("".join(lines), encoding="utf-8")
    assert settings.load().partitions == 7
    for name in settings.Settings.model_fields:
        if name != "spark_kafka":
            monkeypatch.setenv(f"ONEFOLD_{name.upper()}", "")
    assert settings.load().model_dump(exclude={"home", "cache"}) == defaults.model_dump(exclude={"home", "cache"})


def test_a_file_has_an_empty_setting_too(tmp_path: Path) -> None:
    (tmp_path / "onefold.env").write_text("ONEFOLD_KAFKA_OPTIONS=\nONEFOLD_PARTITIONS=\n", encoding="utf-8")
    assert (settings.load().librdkafka, settings.load().partitions) == ({}, 4)


def test_no_more_replicas_are_in_sync_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_MIN_INSYNC_REPLICAS", "3")
    assert settings.load().replication() == Replication(None, 3)
    monkeypatch.setenv("ONEFOLD_REPLICATION_FACTOR", "2")
    with raises(UserError, Code.SETTING_WRONG):
        settings.load()


def test_a_file_in_the_working_folder_holds_settings_too(tmp_path: Path) -> None:
    (tmp_path / "onefold.env").write_text("ONEFOLD_PARTITIONS=7\n", encoding="utf-8")
    assert settings.load().partitions == 7


def test_states_are_kept_in_a_folder_of_the_home_or_where_it_is_said(
    monkeypatch: pytest.MonkeyPatch, clean: Path, tmp_path: Path
) -> None:
    assert settings.load().states() == clean / "states"
    monkeypatch.setenv("ONEFOLD_STATE_HOME", str(tmp_path))
    assert settings.load().states() == tmp_path
    monkeypatch.setenv("ONEFOLD_STATE", "floppy")
    monkeypatch.setenv("ONEFOLD_STATE_MEMORY_MB", "1")
    with raises(UserError, Code.SETTING_WRONG, "ONEFOLD_STATE", "ONEFOLD_STATE_MEMORY_MB"):
        settings.load()


def test_every_folder_of_a_project_has_its_stack_and_its_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the working folder says comes last, and holds."""
    monkeypatch.delenv("ONEFOLD_HOME")
    (tmp_path / "pyproject.toml").write_text("[tool.onefold]\n", encoding="utf-8")
    (tmp_path / "onefold.env").write_text("ONEFOLD_PARTITIONS=7\nONEFOLD_SINKS=2\n", encoding="utf-8")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "onefold.env").write_text("ONEFOLD_SINKS=3\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "deep")

    found = settings.load()

    assert (found.home, found.partitions, found.sinks) == (tmp_path / ".onefold", 7, 3)


def test_children_in_other_folders_get_the_settings_that_were_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: Path
) -> None:
    (tmp_path / "onefold.env").write_text("ONEFOLD_PARTITIONS=7\n", encoding="utf-8")
    monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS", '{"client.id": "b"}')
    made = settings.load().as_environment()
    assert made["ONEFOLD_PARTITIONS"] == "7"
    assert json.loads(made["ONEFOLD_KAFKA_OPTIONS"]) == {"client.id": "b"}
    assert made["ONEFOLD_HOME"] == str(clean)
    assert "ONEFOLD_SINKS" not in made


@pytest.mark.parametrize(("name", "value"), [("POSTGRES_DSN", "postgresql://db/x?nonsense=1"), ("PARTITIONS", "many")])
def test_one_wrong_value_is_one_fault(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where defaults of other settings rest on it."""
    monkeypatch.setenv(f"ONEFOLD_{name}", value)
    monkeypatch.delenv("ONEFOLD_CACHE", raising=False)
    with pytest.raises(UserError) as refused:
        settings.load()
    assert refused.value.message.count("ONEFOLD_") == 1
    assert "Pydantic" not in refused.value.message


def test_the_stack_s_own_database_is_not_looked_for_elsewhere(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libpq takes from the environment what a connection string does not say."""
    foreign = {"PGSERVICE": "none", "PGHOSTADDR": "192.0.2.1", "PGSSLMODE": "verify-full", "PGSSLROOTCERT": "/none"}
    kept = {"PGOPTIONS": "-c jit=off", "PGAPPNAME": "mine"}
    for name, value in {**foreign, **kept}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", "postgresql://me@db/x")
    settings.load().postgres()
    assert os.environ.items() >= foreign.items(), "they are of the user's own server"
    monkeypatch.delenv("ONEFOLD_POSTGRES_DSN")
    with pytest.raises(UserError):
        settings.load().postgres()
    assert os.environ.keys() & foreign.keys() == set()
    assert os.environ.items() >= kept.items()
