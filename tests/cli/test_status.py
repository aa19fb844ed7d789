"""`onefold status`: what it says when servers do not answer, and the live view on a terminal of 80 columns."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg import sql

from onefold.cli import main, shown_status
from onefold.cli.commands import status
from onefold.config import stack_state
from onefold.config.settings import load
from onefold.error_codes import Code
from onefold.exit_codes import OK, UNAVAILABLE, USAGE
from onefold.operate.hanging_transactions import Held
from tests.support.coded import code_of
from tests.support.terminal import CTRL_C, ROOT, Terminal
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow  # starts a process a test

NOBODY = "127.0.0.1:9"
Stack = Callable[..., None]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def stack(home: Path) -> Stack:
    """Writes the state of a stack that this process supervises. Nobody asks a server that does not run yet."""

    def write(kafka: str = "starting", detail: str = "") -> None:
        me = psutil.Process()
        services = {name: {"state": kafka, "detail": detail, "restarts": 0} for name in ("kafka", "postgres")}
        running = {
            "supervisor_pid": me.pid,
            "create_time": me.create_time(),
            "bootstrap_servers": NOBODY,
            "postgres_dsn": f"postgresql://onefold@{NOBODY}/onefold",
            "dashboard": None,
            "services": services,
        }
        stack_state.write(stack_state.path(home), running)

    return write


@pytest.fixture
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of this test alone."""
    monkeypatch.setenv("ONEFOLD_HOME", str(home))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("committed", "line"),
    [
        (False, "to end it onefold kafka transactions abort --topic shop.sales --partition 1 --start-offset 5"),
        (True, "look first onefold kafka transactions describe-producers --topic shop.sales --partition 1"),
    ],
)
def test_what_was_committed_is_shown_without_the_command_that_removes_it(
    committed: bool, line: str, stack: Stack, home: Path
) -> None:
    one = Held("shop.sales", 1, 5, 12, "loader", 93.4, committed)
    stack()
    found = {
        **status.describe(load()),
        "held": [{**one._asdict(), "says": str(one), "remedy": one.remedy}],
    }
    lines = [" ".join(each.split()) for each in shown_status.lines(home, found)]
    assert line in lines
    assert any(each.startswith("blocked shop.sales/1 at offset 5: the transaction of loader") for each in lines)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("shown", [shown_status.lines, shown_status.watched])
def test_what_strangers_wrote_is_text_and_no_command_to_a_terminal(
    shown: Callable[..., list[str]], stack: Stack, home: Path
) -> None:
    """Whose transaction it is, which job waits, and why."""
    one = Held("shop.sales", 1, 5, 12, "\x1b]0;loader\x07", 93.4)
    jobs = {"pending": 1, "active": 0, "deferred": 1, "done": 0, "oldest": "a\x1b[A 0/1", "oldest_s": 1.0}
    stack()
    found = {
        **status.describe(load()),
        "held": [{**one._asdict(), "says": str(one), "remedy": one.remedy}],
        "jobs": {"shop.mails": {**jobs, "reason": "refused:\n\x1b[2J"}},
    }
    lines = shown(home, found)
    assert all(line.isprintable() for line in lines)
    assert all(text in "\n".join(lines) for text in (r"of \x1b]0;loader\x07 is", r"a\x1b[A 0/1", r"refused:\n\x1b[2J"))


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main.run(["status", *arguments])
    found = capsys.readouterr()
    return code, found.out, found.err


@pytest.mark.usefixtures("here")
def test_a_machine_where_nothing_is_set_and_nothing_runs_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys)
    assert (code, err) == (OK, "")
    assert "is not running: `onefold up` starts it." in out


@pytest.mark.usefixtures("here")
def test_servers_that_are_set_and_do_not_answer_are_one_sentence_and_a_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known is printed all the same, and what is not is called unknown."""
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", NOBODY)
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", f"postgresql://me:secret@{NOBODY}/none")
    code, out, err = told(capsys)
    assert code == UNAVAILABLE
    assert err.splitlines()[0] == (
        f"error OF-201: Kafka at {NOBODY} does not answer: Connection refused; "
        f"PostgreSQL at postgresql://me@{NOBODY}/none does not answer: connection refused"
    )
    assert "lag of runner            unknown to process, unknown to write" in out
    code, out, err = told(capsys, "--json")
    assert code == json.loads(err)["exit_code"] == UNAVAILABLE
    found = json.loads(out)
    assert json.loads(err)["error"] == "; ".join(found["problems"])
    assert found["bootstrap_servers"] == NOBODY
    assert found["lag"]["runner"]["seconds"] is found["lag"]["runner"]["events"] is None


@pytest.mark.usefixtures("here")
def test_what_postgresql_guarantees_is_said_also_where_kafka_is_away(
    database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of Kafka that it cannot be asked: `status` asks it once, and no topic after that."""
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", NOBODY)
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", database)
    with psycopg.connect(database, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
    code, out, _ = told(capsys, "--json")
    found = json.loads(out)["guarantee"]
    assert (code, found["unknown"]) == (UNAVAILABLE, ["Kafka: it cannot be asked"])
    assert [finding["name"] for finding in found["findings"]] == ["synchronous_commit_off"]


@pytest.mark.usefixtures("here")
def test_a_running_stack_whose_servers_are_not_there_yet_is_told_at_once(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack("restarting")
    code, out, err = told(capsys)
    assert code == UNAVAILABLE
    assert "Kafka does not answer: in the embedded stack it is restarting; PostgreSQL does not answer: " in err
    assert re.search("^kafka +restarting", out, re.MULTILINE)


@pytest.mark.usefixtures("here")
def test_people_watch_and_programs_ask(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "--watch", "--json")[0] == USAGE


def test_the_live_view_follows_what_happens_and_ends_by_ctrl_c(
    stack: Stack, home: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """On a terminal of 80 columns no line is longer, whatever a service says; the cursor is there again at the end."""
    stack("starting")
    with Terminal({**environment, "ONEFOLD_HOME": str(home)}, tmp_path, "status", "--watch") as terminal:
        terminal.shows("in the embedded stack it is starting")
        stack("restarting", "long " * 40)
        terminal.shows("in the embedded stack it is restarting")
        terminal.shows("long long")
        terminal.press(CTRL_C)
        assert terminal.ended() == OK
        assert max(map(len, terminal.lines())) <= 80
        assert "…" in terminal.written
        assert "\x1b[1;31m" in terminal.written
        assert terminal.written.rindex("\x1b[?25h") > terminal.written.rindex("\x1b[?25l")
        assert "Traceback" not in terminal.written


def test_ctrl_c_is_heard_while_a_server_is_waited_for(home: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """A call into the client of Kafka's, which hears nothing, is left where it is."""
    nobody = {"ONEFOLD_HOME": str(home), "ONEFOLD_BOOTSTRAP_SERVERS": NOBODY}
    with Terminal({**environment, **nobody}, tmp_path, "status", "--watch") as terminal:
        terminal.shows("asking")
        terminal.press(CTRL_C)
        assert terminal.ended() == OK, terminal.written
        assert "does not answer" not in terminal.written


def test_a_reader_who_wants_no_colours_gets_no_escape(
    stack: Stack, home: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """As with every command; so nothing is shown in place either, and each change is a block."""
    stack("starting")
    chosen = {**environment, "ONEFOLD_HOME": str(home), "NO_COLOR": "1"}
    with Terminal(chosen, tmp_path, "status", "--watch") as terminal:
        terminal.shows("it is starting")
        stack("restarting")
        terminal.shows("it is restarting")
        terminal.press(CTRL_C)
        assert terminal.ended() == OK
        assert "\x1b" not in terminal.written


@pytest.mark.parametrize("also", [{}, {"FORCE_COLOR": "1", "TERM": "xterm-256color"}], ids=["plain", "forced"])
def test_without_a_terminal_each_change_is_a_block_without_escapes(
    stack: Stack, home: Path, environment: dict[str, str], tmp_path: Path, also: dict[str, str]
) -> None:
    stack("starting")
    out = tmp_path / "out"

    def blocks() -> list[str]:
        return out.read_text(encoding="utf-8").split("\n\n")[:-1]

    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "onefold.cli.main", "status", "--watch"], stdout=file, stderr=file, cwd=tmp_path,
            env={**environment, **also, "ONEFOLD_HOME": str(home), "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
        try:
            eventually(lambda: len(blocks()) == 1, 30, "a first block")
            stack("restarting")
            eventually(lambda: len(blocks()) == 2, 30, "a second block")
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == OK
        finally:
            process.kill()
            process.wait(10)
    assert ["starting" in blocks()[0], "restarting" in blocks()[1]] == [True, True]
    assert "\x1b" not in out.read_text(encoding="utf-8")


def test_what_goes_wrong_while_it_is_watched_is_a_sentence(
    home: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "onefold.env").write_text("ONEFOLD_PARTITIONS=none\n", encoding="utf-8")
    with Terminal({**environment, "ONEFOLD_HOME": str(home)}, tmp_path, "status", "--watch") as terminal:
        assert terminal.ended() == USAGE
        assert code_of(terminal.written, "ONEFOLD_PARTITIONS") is Code.SETTING_WRONG
