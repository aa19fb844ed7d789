"""`onefold kafka`: what the tools of Kafka are given."""

import os
import stat
from pathlib import Path

import pytest

from onefold.cli.commands.kafka import CONFIG, as_properties, flags, with_login, with_servers
from onefold.exit_codes import USAGE
from onefold.operate.errors import UserError
from onefold.operate.settings import Settings


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
        lines = Path(f"/dev/fd/{made.fileno()}").read_text().splitlines()
    assert "security.protocol=SASL_PLAINTEXT" in lines
    assert any(line.startswith("sasl.jaas.config=org.apache.kafka") for line in lines)


@pytest.mark.parametrize("named", [[CONFIG, "mine"], [f"{CONFIG}=mine"], ["--producer.config", "mine"]])
def test_a_file_that_is_named_is_taken_instead(named: list[str]) -> None:
    assert with_login(["--list", *named], Settings(bootstrap_servers="h:1", kafka_options=OPTIONS)) is None
    assert with_login(["--list"], Settings(bootstrap_servers="h:1")) is None


def test_a_certificate_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    missing = {"ssl.certificate.location": str(tmp_path / "a.pem"), "ssl.key.location": str(tmp_path / "b.pem")}
    with pytest.raises(UserError, match="names a file that cannot be read") as caught:
        with_login([], Settings(bootstrap_servers="h:1", kafka_options={"security.protocol": "ssl", **missing}))
    assert caught.value.exit_code == USAGE


def test_properties_are_written_as_java_reads_them() -> None:
    """One line each, whatever is in it."""
    assert as_properties({"a": "plain=#!:", "b": " \\n\n"}) == "a=plain=#!:\nb=\\u0020\\u005cn\\u000a\n"
    assert as_properties({"c": "ü\N{GRINNING FACE}"}) == "c=\\u00fc\\ud83d\\ude00\n"


def test_whoever_gives_tokens_is_known_to_the_tool() -> None:
    """Kafka 4 asks no other one."""
    token = {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.token.endpoint.url": "https://t/token"}
    client = {"sasl.oauthbearer.client.id": "a", "sasl.oauthbearer.client.secret": "b"}
    options = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER", **token, **client}
    assert flags(Settings(kafka_options=options)) == [
        "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=https://t/token"
    ]
    assert flags(Settings(kafka_options=OPTIONS)) == []
