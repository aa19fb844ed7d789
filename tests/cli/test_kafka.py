"""`onefold kafka`: what the tools of Kafka are given."""

import os
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from onefold.cli import main
from onefold.cli.commands import kafka
from onefold.cli.commands.kafka import CONFIG, check_answers, flags, with_login, with_servers
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import UNAVAILABLE, USAGE
from onefold.stack import jars, java
from tests.support.coded import code_of, raises


def nobody() -> str:
    raise AssertionError("servers are named")


@pytest.mark.parametrize("named", [["--bootstrap-server", "h:1"], ["--bootstrap-server=h:1"]])
def test_servers_that_are_named_are_taken_in_either_spelling(named: list[str]) -> None:
    """Nobody asks for the stack then, which may not run; and what looks like one is left alone."""
    other = ["--list", "--command-property=bootstrap-server=x"]
    assert with_servers([*other, *named], nobody) == [*other, "--bootstrap-server", "h:1"]


def test_else_they_are_ours() -> None:
    assert with_servers(["--list"], lambda: "ours:2") == ["--bootstrap-server", "ours:2", "--list"]


OPTIONS = {
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "ann",
    "sasl.password": 'a "b" \\ c\nü\N{GRINNING FACE}',
}


def test_what_a_tool_logs_in_with_is_a_file_without_a_name() -> None:
    """That the tool inherits: nobody else can read the password, and nothing is left of it."""
    with with_login(["--list"], Settings(bootstrap_servers="h:1", kafka_options=OPTIONS)) or pytest.fail(
        "none"
    ) as made:
        assert os.get_inheritable(made.fileno())
        assert os.fstat(made.fileno()).st_nlink == 0
        assert stat.S_IMODE(os.fstat(made.fileno()).st_mode) & 0o077 == 0
        lines = Path(f"/dev/fd/{made.fileno()}").read_text(encoding="utf-8").splitlines()
    assert "security.protocol=SASL_PLAINTEXT" in lines
    assert any(line.startswith("sasl.jaas.config=org.apache.kafka") for line in lines)


def test_a_tool_gets_settings_by_javas_own_names() -> None:
    java = {"sasl.jaas.config": "Krb5;", "sasl.oauthbearer.token.endpoint.url": "https://t/token"}
    settings = Settings(bootstrap_servers="h:1", spark_kafka=java)
    with with_login(["--list"], settings) or pytest.fail("none") as made:
        assert "sasl.jaas.config=Krb5;" in Path(f"/dev/fd/{made.fileno()}").read_text(encoding="utf-8")
    assert flags(settings) == ["-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=https://t/token"]


@pytest.mark.parametrize("named", [[CONFIG, "mine"], [f"{CONFIG}=mine"], ["--producer.config", "mine"]])
def test_a_file_that_is_named_is_taken_instead(named: list[str]) -> None:
    assert with_login(["--list", *named], Settings(bootstrap_servers="h:1", kafka_options=OPTIONS)) is None
    assert with_login(["--list"], Settings(bootstrap_servers="h:1")) is None


def test_a_certificate_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    missing = {"ssl.certificate.location": str(tmp_path / "a.pem"), "ssl.key.location": str(tmp_path / "b.pem")}
    with raises(UserError, Code.KAFKA_SETTING_WRONG) as caught:
        with_login([], Settings(bootstrap_servers="h:1", kafka_options={"security.protocol": "ssl", **missing}))
    assert caught.value.exit_code == USAGE


def test_whoever_gives_tokens_is_known_to_the_tool() -> None:
    """Kafka 4 asks no other one."""
    token = {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.token.endpoint.url": "https://t/token"}
    client = {"sasl.oauthbearer.client.id": "a", "sasl.oauthbearer.client.secret": "b"}
    options = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER", **token, **client}
    assert flags(Settings(kafka_options=options)) == [
        "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=https://t/token"
    ]
    assert flags(Settings(kafka_options=OPTIONS)) == []


@pytest.fixture
def frozen() -> Iterator[str]:
    """Where the operating system takes connections, and nobody else does: as of a broker that is stopped."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "_ANSWER_S", 0.2)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tool is there to be started, nor are its jars fetched."""
    monkeypatch.setattr(java, "locate", lambda cache: SimpleNamespace(executable=None))
    monkeypatch.setattr(jars, "ensure", lambda *_: [])


@pytest.mark.usefixtures("impatient", "bare")
def test_a_broker_that_hangs_is_one_sentence_and_a_code(
    frozen: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a tool is started that would warn of it for a minute."""
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("it would take the place of this test"))
    assert main.run(["kafka", "topics", "--list", "--bootstrap-server", frozen]) == UNAVAILABLE
    assert capsys.readouterr().err.splitlines() == [
        f"error OF-201: Kafka at {frozen} does not answer", "  Look with `onefold status`, or start it.",
    ]  # fmt: skip


@pytest.mark.usefixtures("impatient")
def test_one_of_several_that_answers_is_enough(frozen: str, bootstrap_servers: str) -> None:
    check_answers([bootstrap_servers])
    check_answers([f"127.0.0.1:9,{frozen},{bootstrap_servers}"])


def test_who_hangs_up_on_a_greeting_without_tls_is_awake() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server, ThreadPoolExecutor(1) as other:
        hung_up = other.submit(lambda: server.accept()[0].close())
        check_answers([f"127.0.0.1:{server.getsockname()[1]}"])
        hung_up.result(20)


@pytest.mark.usefixtures("bare")
def test_the_sentence_has_no_password(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def nobody(*_: object) -> socket.socket:
        raise OSError

    monkeypatch.setattr(socket, "create_connection", nobody)
    assert main.run(["kafka", "topics", "--list", "--bootstrap-server", "sasl://ann:secret@h:9"]) == UNAVAILABLE
    assert code_of(capsys.readouterr().err, "sasl://ann:***@h:9") is Code.KAFKA_SILENT
