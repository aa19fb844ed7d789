"""What a user gets wrong is one sentence, with the exit code for a script."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.cli.main import run

AWAY = {"ONEFOLD_BOOTSTRAP_SERVERS": "127.0.0.1:9", "ONEFOLD_POSTGRES_DSN": "postgresql://me@127.0.0.1:9/none"}
NO_OPTION = {**AWAY, "ONEFOLD_KAFKA_OPTIONS": '{"no.such": "1"}'}
NO_STACK = {"ONEFOLD_HOME": "/nonexistent"}


@pytest.fixture
def _signals_are_left() -> Iterator[None]:
    """`up` and `process` take over signals of the process."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("words", "settings", "code", "says"),
    [
        ("process nothing", {}, 2, "there is no pipeline nothing"),
        ("up", {"ONEFOLD_PARTITIONS": "zero"}, 2, "ONEFOLD_PARTITIONS"),
        ("up", {"ONEFOLD_AUDITED": "nothing"}, 2, "there is no pipeline nothing"),
        ("audit", AWAY, 2, "no pipeline is audited"),
        ("audit runner", NO_STACK, 2, "there is no Kafka to talk to"),
        ("audit runner --once", NO_STACK, 2, "there is no Kafka to talk to"),
        (
            "audit --once",
            {**AWAY, "ONEFOLD_AUDITED": "all"},
            2,
            "--once and --until-found need the name of one pipeline",
        ),
        ("sql", NO_STACK, 1, "not running"),
        ("produce nowhere", {}, 2, "is no input topic"),
        ("produce runner.updates --count 1", NO_OPTION, 2, "no.such"),
        ("process runner", NO_OPTION, 2, "no.such"),
        ("process", NO_OPTION, 2, "no.such"),
        ("process runner", {"ONEFOLD_SCHEMA_REGISTRY_URL": "nonsense"}, 2, "ONEFOLD_SCHEMA_REGISTRY_URL"),
        ("up", {"ONEFOLD_HOME": "/dev/null/home"}, 1, "ONEFOLD_HOME"),
        ("up", {"ONEFOLD_PARTITION": "3"}, 2, "ONEFOLD_PARTITION is no setting, ONEFOLD_PARTITIONS is"),
        ("kafka topics --list", AWAY, 69, "does not answer"),
        ("verify runner --timeout 0", AWAY, 2, "runner: unknown - the database opens no session"),
        ("migrate", {"ONEFOLD_POSTGRES_DSN": "postgresql://127.0.0.1:notaport/x"}, 2, "its port is no number"),
    ],
)
@pytest.mark.usefixtures("_signals_are_left")
def test_a_mistake_is_one_sentence(
    words: str, settings: dict[str, str], code: int, says: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It says what to do, and has no stack trace."""
    monkeypatch.chdir(tmp_path)
    for name, value in ({"ONEFOLD_HOME": str(tmp_path)} | settings).items():
        monkeypatch.setenv(name, value)

    assert run(words.split()) == code
    captured = capsys.readouterr()
    said = captured.out + captured.err
    assert says in said
    assert "Traceback" not in said
