"""No password is printed that nobody asked for: not by up and status, not in an error, not among a program's arguments."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import psutil
import psycopg
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from psycopg.pq import Conninfo

from onefold.chaos.injection import Dice
from onefold.cli import main
from onefold.cli.commands import sql
from onefold.config import redaction, settings, stack_state
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import OK, REFUSED, UNAVAILABLE
from onefold.jobs.objects import open_store
from onefold.stack import control
from tests.support.coded import raises

PASSWORD = "hunter2"
READABLE = [
    ("postgresql://me:hunter2@db.example:5432/events", "postgresql://me@db.example:5432/events"),
    ("postgres://me:hunter2@db/events", "postgresql://me@db/events"),
    ("postgresql://me@db/events", "postgresql://me@db/events"),
    ("postgresql://:hunter2@db/events", "postgresql://db/events"),
    ("postgresql://db/events?password=hunter2&user=me", "postgresql://me@db/events"),
    ("postgresql://me@db/events?sslpassword=hunter2&sslmode=require", "postgresql://me@db/events?sslmode=require"),
    ("postgresql://me:hunter2@[::1]:5432,other:5433/events", "postgresql://me@[::1]:5432,other:5433/events"),
    ("postgresql://me:hunter2@%2Frun%2Fpostgresql/events", "postgresql://me@%2Frun%2Fpostgresql/events"),
    ("postgresql://m%40e:hunter2%2F%40@db/my%20events", "postgresql://m%40e@db/my%20events"),
    ("postgresql://me:hunter2@db/events?passfile=/home/me/.pgpass", "postgresql://me@db/events?passfile=/home/me/.pgpass"),
    ("postgresql:///events", "postgresql:///events"),
    ("host=db user=me password=hunter2 dbname=events", "user=me dbname=events host=db"),
    ("host=db password='hunter2 and more' sslpassword = hunter2", "host=db"),
    ("host=db oauth_client_secret=hunter2", "host=db"),
    ("service=mine", "service=mine"),
]  # fmt: skip
UNREADABLE = [
    "hunter2",
    "postgresql://me:hunter2%zz@db/events",
    "host=db password=my hunter2",
    "postgresql://me@db/events?hunter2=x",
    "postgresql://me@db:notaport/events",
    "postgresql://me@db:0/events",
    "postgresql://me@db:5432,other:65536/events",
    "host=db port=99999",
    # libpq reads these, with a host that is half a password.
    "postgresql://me:my@hunter2@db/events",
    "postgresql://me:my/hunter2@db/events",
]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No settings of the developer, and a home of the test's own."""
    for name in list(os.environ):
        if name.startswith("ONEFOLD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture(params=["the stack's own", "the user's"])
def connection(request: pytest.FixtureRequest, clean: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The state of a running stack whose database has a password."""
    me = psutil.Process()
    running = {
        "supervisor_pid": me.pid,
        "create_time": me.create_time(),
        "bootstrap_servers": "127.0.0.1:9",
        "postgres_dsn": f"postgresql://onefold:{PASSWORD}@127.0.0.1:9/onefold",
        "dashboard": None,
        "services": {"postgres": {"state": "waiting", "detail": "", "restarts": 0}},
    }
    stack_state.write(stack_state.path(clean), running)
    if request.param == "the user's":
        monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", str(running["postgres_dsn"]))
    return running


@pytest.mark.parametrize(("given", "shown"), READABLE)
def test_a_connection_is_shown_without_its_secrets_and_can_still_be_used(given: str, shown: str) -> None:
    assert redaction.dsn(given) == shown
    public = {name: value for name, value in parsed(given).items() if name not in redaction.SECRET}
    assert parsed(shown) == public


def parsed(text: str) -> dict[str, Any]:
    return psycopg.conninfo.conninfo_to_dict(text)


@pytest.mark.parametrize("given", UNREADABLE)
def test_what_cannot_be_read_is_not_repeated(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert redaction.dsn(given) == redaction.UNREADABLE
    for name in ("ONEFOLD_POSTGRES_DSN", "ONEFOLD_DASHBOARD_DSN"):
        with monkeypatch.context() as only:
            only.setenv(name, given)
            with pytest.raises(UserError) as caught:
                settings.load()
        assert caught.value.exit_code == 2
        assert caught.value.message.startswith(f"{name} cannot be used: ")
        assert PASSWORD not in caught.value.as_text() + caught.value.as_json()


@pytest.mark.parametrize("verb", ["up", "status"])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_password_is_printed_only_when_it_is_asked_for(
    verb: str,
    form: list[str],
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(control, "up", lambda *given: (connection, False))
    code = OK if verb == "up" else UNAVAILABLE
    assert main.run([verb, *form]) == code
    told = capsys.readouterr()
    assert PASSWORD not in told.out + told.err
    assert "postgresql://onefold@127.0.0.1:9/onefold" in told.out
    assert main.run([verb, *form, "--show-password"]) == code
    told = capsys.readouterr()
    assert connection["postgres_dsn"] in told.out
    if form:
        assert json.loads(told.out)["postgres_dsn"] == connection["postgres_dsn"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (f'{{"sasl.password": ["{PASSWORD}"]}}', "sasl.password"),
        (f'["{PASSWORD}"]', "ONEFOLD_KAFKA_OPTIONS"),
        (f'{{"sasl.password": "{PASSWORD}"', "JSON"),
        (f'"{PASSWORD}"', "ONEFOLD_KAFKA_OPTIONS"),
    ],
)
@pytest.mark.parametrize("where", ["environment", "file", "secret"])
def test_wrong_kafka_options_are_not_repeated(
    options: str, says: str, where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if where == "environment":
        monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS", options)
    elif where == "secret":
        (tmp_path / "options.json").write_text(options, encoding="utf-8")
        monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS_FILE", str(tmp_path / "options.json"))
    else:
        (tmp_path / "onefold.env").write_text(f"ONEFOLD_KAFKA_OPTIONS={options!r}\n", encoding="utf-8")
    with raises(UserError, Code.SETTING_WRONG, says) as caught:
        settings.load()
    assert PASSWORD not in caught.value.as_text() + caught.value.as_json()


@pytest.mark.parametrize("name", ["ONEFOLD_SCHEMA_REGISTRY_URL", "ONEFOLD_OBJECTS_ENDPOINT"])
def test_wrong_addresses_are_not_repeated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, f"ftp://me:{PASSWORD}@registry")
    with raises(UserError, Code.SETTING_WRONG, str(name)) as caught:
        settings.load()
    assert PASSWORD not in caught.value.as_text()


def test_an_address_that_is_no_store_of_objects_is_told_without_its_password() -> None:
    with raises(UserError, Code.SETTING_WRONG) as caught:
        open_store(f"minio://me:{PASSWORD}@store/bucket")
    assert PASSWORD not in caught.value.as_text()


@pytest.mark.parametrize("verb", ["up", "status"])
@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize(
    "servers",
    [
        f"SASL_SSL://me:{PASSWORD}@127.0.0.1:9",
        f"SASL_SSL://me:{PASSWORD}@127.0.0.1:9,SASL_SSL://me:{PASSWORD}@127.0.0.1:9",
        f"SASL_SSL://me:{PASSWORD},@127.0.0.1:9",
    ],
)
def test_a_password_in_the_address_of_kafka_is_not_printed(
    verb: str,
    form: list[str],
    servers: str,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither as an address, nor where nobody answers there."""
    connection["bootstrap_servers"] = servers
    monkeypatch.setattr(control, "up", lambda *given: (connection, False))
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", servers)
    assert main.run([verb, *form]) == (OK if verb == "up" else REFUSED)
    told = capsys.readouterr()
    assert PASSWORD not in told.out + told.err
    assert "SASL_SSL://me:***@127.0.0.1:9" in told.out
    assert verb == "up" or "an address of Kafka has an account in front of its host" in told.err


def test_what_the_kafka_client_says_of_a_secret_is_scrubbed() -> None:
    options = {"sasl.password": PASSWORD, "sasl.username": "me", "ssl.key.password": ""}
    assert redaction.scrub(f"me and {PASSWORD}", options) == "me and ***"


def test_psql_gets_no_secret_as_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody can read arguments, in `ps`."""
    dsn = f"postgresql://me:{PASSWORD}@db/events?sslpassword={PASSWORD}&sslmode=require"
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", dsn)
    called: list[Any] = []
    monkeypatch.setattr("os.execve", lambda *given: called.append(given))
    monkeypatch.setattr(sql, "_psql", lambda: sys.executable)
    sql.command(["-c", "SELECT 1"])
    ((_, argv, environment),) = called
    assert PASSWORD not in " ".join(argv)
    assert "sslmode=require" in " ".join(argv)
    assert environment["PGPASSWORD"] == PASSWORD


def test_a_failed_connection_is_told_without_the_password(capsys: pytest.CaptureFixture[str]) -> None:
    given = settings.Settings(postgres_dsn=f"postgresql://me:{PASSWORD}@127.0.0.1:9/events?connect_timeout=1")
    assert not Dice("state", 1.0, given, lambda: 1.0).fails()
    told = capsys.readouterr()
    assert "was not counted" in told.out + told.err
    assert PASSWORD not in told.out + told.err


@drawn(text=st.from_regex(redaction.PLAIN, fullmatch=True))
def test_what_is_taken_for_plain_libpq_reads_as_it_is_written(text: str) -> None:
    """For it is not asked: its client is most of the start of a process that has no other use for it."""
    account, _, place = text.partition("://")[2].partition("@")
    user, _, password = account.partition(":")
    server, _, database = place.partition("/")
    host, _, port = server.partition(":")
    read = {one.keyword: one.val for one in Conninfo.parse(text.encode()) if one.val}
    written = {"user": user, "password": password, "host": host, "port": port, "dbname": database}
    assert read == {name.encode(): unquote_to_bytes(value) for name, value in written.items() if value}


@pytest.mark.parametrize(
    "text",
    ["postgresql://me@h/a%00", "postgresql://me@h/a%zz", "postgresql://a@b@h/d", "postgresql://me@h,g/d", "me@h/d",
     "postgresql://me@h/d?x=1", "postgresql://me@h/d\n", "postgresql://mé@h/d", "postgresql://me@h:x/d"],
)  # fmt: skip
def test_what_is_less_plain_libpq_is_asked_about(text: str) -> None:
    assert not re.fullmatch(redaction.PLAIN, text)
