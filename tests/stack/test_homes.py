"""`down --wipe` removes what a stack of Onefold has written into its home, after a question, and nothing else."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from onefold.cli.commands import down
from onefold.cli.main import run
from onefold.config import stack_state
from onefold.config.errors import UserError
from onefold.config.settings import load
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, OK, USAGE
from onefold.stack import data_directory
from onefold.stack.broker import Broker
from onefold.stack.postgres import PostgresServer
from tests.support import previous
from tests.support.coded import code_of, raises
from tests.support.rooms import ROOT

pytestmark = pytest.mark.promise("wiping")

#: A file of each kind that the product writes into a home.
OURS = (
    "checkpoints/sink-1/local/blockmgr-1/x",
    "checkpoints/sink-1/log4j2.properties",
    "checkpoints/sink-1/notes/0a1b.json",
    "checkpoints/sink-1/sink-1.4711/runner/0/offsets/0",
    "checkpoints/sink-1/spark.log",
    "checkpoints/sink-1/spark.log.1",
    "checkpoints/sink-1/spark.out",
    "checkpoints/sink-1/tmp/x",
    "judge/runner/0a1b.checkpoint",
    "judge/runner/draft-x",
    "kafka/data/meta.properties",
    "kafka/data/runner.updates-0/00000000000000000000.log",
    "kafka/server.properties",
    "kafka/tmp/snappy-1.1.10.7-libsnappyjava.so",
    "logs/kafka.log",
    "logs/kafka.log.before",
    "logs/kafka.log.1",
    "logs/processor-runner-1.log.before.2",
    "logs/rebuild-runner.json",
    "logs/warm.log",
    "objects/objects/aa/bb",
    "objects/marks/cc",
    "objects/unfinished/tmp1",
    "postgres/data/PG_VERSION",
    "postgres/password",
    "postgres/passwords",
    "run/history.jsonl",
    "run/plan.json",
    "run/ports.json",
    "run/sink-1.turn",
    "states/runner/0/000009.sst",
    "states/runner/0/CURRENT",
    "states/runner/0.lock",
    "states/runner/12.1/CURRENT",
    "states/runner/12.1/LOG.old.1795888688451335",
    "run/sink-1.status.json",
)
#: Files of a user, in folders with the names of ours.
THEIRS = (
    "checkpoints/sink-drawings/plan.pdf",
    "checkpoints/sink-drawings/tmp/plan.pdf",
    "checkpoints/sink-1/notes.txt",
    "logs/app.log",
    "logs/app.log.before",
    "logs/app.log.1",
    "logs/kafka.log.before.d/app.log",
    "logs/thesis.txt",
    "objects/objects/photo.jpg",
    "objects/objects/2024/photo.jpg",
    "objects/marks/a.txt",
    "objects/photo.jpg",
    "objects/unfinished/essay.txt",
    "kafka/notes.md",
    "judge/runner/draft-2/thesis.txt",
    "judge/runner/verdict.txt",
    "run/audit.json.d/book.txt",
    "run/settings.json",
    "states/ohio/2024-votes.csv",
    "states/ohio/2024/votes.csv",
    "thesis.tex",
)
#: What the product would write itself where it made the folder around it. Without its other files nothing says so.
ALIKE = ("objects/objects/aa", "checkpoints/sink-1/tmp/x", "checkpoints/sink-1/sink-1.4711/x")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that ONEFOLD_HOME names."""
    folder = tmp_path / "home"
    monkeypatch.setenv("ONEFOLD_HOME", str(folder))
    return folder


def fill(home: Path, files: tuple[str, ...]) -> None:
    for name in files:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("{}" if name.endswith(".json") else name, encoding="utf-8")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_a_wipe_removes_all_that_the_stack_has_written(home: Path) -> None:
    data_directory.claim(home)
    fill(home, OURS)
    assert run(["down", "--wipe", "--yes"]) == OK
    assert files(home) == {"run/lock"}


@pytest.mark.parametrize("names", [OURS, THEIRS, ("logs/app.log",), ("postgres/data/PG_VERSION",)])
def test_a_folder_where_no_stack_has_run_is_not_touched(
    names: tuple[str, ...], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its files are called; without a file of ports, as each stack has it."""
    fill(home, tuple(name for name in names if name != "run/ports.json"))
    before = files(home)
    assert run(["down", "--wipe", "--yes"]) == USAGE
    assert code_of(capsys.readouterr().err, str(home)) is Code.DATA_DIRECTORY
    assert run(["down"]) == OK
    assert files(home) == before


def test_where_there_is_nothing_to_remove_a_script_goes_on(home: Path) -> None:
    assert run(["down", "--wipe", "--yes"]) == OK
    assert not home.exists()


def test_what_the_stack_did_not_write_stays_and_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data_directory.claim(home)
    fill(home, (*OURS, *THEIRS))
    assert run(["down", "--wipe", "--yes"]) == OK
    said = capsys.readouterr().out
    assert files(home) == {*THEIRS, "run/lock", "onefold.home"}
    for name in THEIRS[:-1]:
        assert f"{home / name} stays" in said
    fill(home, OURS)
    assert run(["down", "--wipe", "--yes"]) == OK, "the home is still that of a stack"
    assert files(home) == {*THEIRS, "run/lock", "onefold.home"}


@pytest.mark.parametrize("name", ALIKE)
def test_a_folder_of_the_user_with_the_name_of_ours_stays(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(home, (name,))
    data_directory.claim(home)
    assert run(["down", "--wipe", "--yes"]) == OK
    assert (home / name).exists()
    assert f"{home / name} stays" in capsys.readouterr().out


def asked(home: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The question of a wipe, which has no terminal here."""
    assert run(["down", "--wipe"]) == USAGE
    return capsys.readouterr().err


#: What of a home a wipe removes, by the words of its question.
NAMED = {
    "topics": "kafka/data",
    "tables": "postgres/data",
    "states": "states",
    "objects": "objects/objects",
    "checkpoints": "checkpoints",
    "checkpoints of `verify`": "judge",
    "logs": "logs",
}

WORDS = "|".join(sorted(NAMED, key=len, reverse=True))  # the longest of those that begin alike matches


@pytest.mark.parametrize("word", NAMED)
def test_the_question_names_what_is_removed_and_no_more(
    word: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_directory.claim(home)
    fill(home, OURS)
    whole = asked(home, capsys)
    assert word in whole
    shutil.rmtree(home / NAMED[word])
    assert set(re.findall(WORDS, whole)) - set(re.findall(WORDS, asked(home, capsys))) == {word}


#: Places of data that are the user's own, and the words for what stays there.
PLACES = {
    "BOOTSTRAP_SERVERS": ("127.0.0.1:9", "topics"),
    "POSTGRES_DSN": ("postgresql://a:secret@127.0.0.1:9/x", "tables"),
    "OBJECTS": ("s3://bucket", "objects"),
    "STATE_HOME": ("/nowhere/states", "states"),
    "JUDGE_HOME": ("/nowhere/judge", "checkpoints of `verify`"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_of_the_users_own_is_said_to_stay(
    name: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the answer, and after the deed."""
    value, word = PLACES[name]
    monkeypatch.setenv(f"ONEFOLD_{name}", value)
    data_directory.claim(home)
    fill(home, OURS)
    expected = rf"{word}[^;]* of ONEFOLD_{name} stay"
    question = asked(home, capsys)
    assert re.search(expected, question)
    assert "secret" not in question
    assert run(["down", "--wipe", "--yes"]) == OK
    assert re.search(expected, capsys.readouterr().out)
    assert files(home) == {"run/lock"}


@pytest.mark.parametrize("name", ["OBJECTS", "STATE_HOME", "JUDGE_HOME"])
def test_a_place_in_the_home_that_is_wiped_is_not_said_to_stay(
    name: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user has set what the stack would use anyway."""
    places = {
        "OBJECTS": f"{(home / 'objects').as_uri()}/",
        "STATE_HOME": f"{home}/states",
        "JUDGE_HOME": f"{home}/judge",
    }
    monkeypatch.setenv(f"ONEFOLD_{name}", places[name])
    data_directory.claim(home)
    fill(home, OURS)
    assert " stay" not in asked(home, capsys)
    assert run(["down", "--wipe", "--yes"]) == OK
    assert " stay" not in capsys.readouterr().out
    assert files(home) == {"run/lock"}


@pytest.mark.parametrize(("service", "stays"), [("postgres", False), ("sink-1", True)])
def test_the_stacks_own_servers_are_not_said_to_stay(
    service: str, stays: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user has set the address that `status` prints; a stack without PostgreSQL runs on the user's own."""
    dsn = "postgresql://a:secret@127.0.0.1:9/x"
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", dsn)
    supervisor = {"supervisor_pid": os.getpid(), "create_time": psutil.Process().create_time()}
    stack_state.write(stack_state.path(home), {**supervisor, "postgres_dsn": dsn, "services": {service: {}}})
    assert any("POSTGRES_DSN" in sentence for sentence in down._elsewhere(load())) is stays


def test_a_start_leaves_logs_of_other_programs_as_they_are(home: Path) -> None:
    """The logs of services are put aside by their names."""
    data_directory.claim(home)
    fill(home, (*OURS, "logs/app.log", "logs/app.log.before", "logs/kafka.log.d/x"))
    logs, before = data_directory.logs(home)
    assert [path.name for path in logs] == ["kafka.log", "kafka.log.1", "warm.log"]
    assert [path.name for path in before] == ["kafka.log.before", "processor-runner-1.log.before.2"]


@pytest.mark.parametrize("linked", ["kafka", "logs", "run", "objects/objects", "states/runner", "kafka/data"])
def test_a_link_is_not_followed(linked: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither of a folder of the home nor of one inside."""
    data_directory.claim(home)
    fill(home, OURS)
    elsewhere = tmp_path / "elsewhere"
    shutil.move(home / linked, elsewhere)
    (home / linked).symlink_to(elsewhere)
    before = files(elsewhere)
    assert before
    assert run(["down", "--wipe", "--yes"]) == OK
    assert (home / linked).is_symlink()
    assert files(elsewhere) - {"lock"} == before
    assert f"{home / linked} is a link" in capsys.readouterr().out


def test_a_home_of_the_release_before_is_known_by_its_file_of_ports(home: Path) -> None:
    fill(home, OURS)
    shutil.copy(previous.FOLDER / "ports.json", home / "run" / "ports.json")
    assert run(["down", "--wipe", "--yes"]) == OK
    assert files(home) == {"run/lock"}


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_without_a_terminal_a_wipe_needs_yes(
    arguments: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_directory.claim(home)
    fill(home, OURS)
    before = files(home)
    assert run(["down", "--wipe", *arguments]) == USAGE
    assert "--yes" in capsys.readouterr().err
    assert files(home) == before


@pytest.mark.parametrize(("answer", "code", "stay"), [("n", FAILED, True), ("", FAILED, True), ("y", OK, False)])
def test_on_a_terminal_a_wipe_asks(answer: str, code: int, stay: bool, home: Path) -> None:
    data_directory.claim(home)
    fill(home, OURS)
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    command = [sys.executable, "-m", "onefold.cli.main", "down", "--wipe"]
    ran = subprocess.run(command, stdin=theirs, capture_output=True, encoding="utf-8", timeout=60, check=False)
    os.close(ours)
    os.close(theirs)
    assert f"removes from {home}: " in ran.stderr
    assert (ran.returncode, (home / "kafka" / "data").exists()) == (code, stay)


def test_json_names_what_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data_directory.claim(home)
    fill(home, (*OURS, "logs/thesis.txt"))
    assert run(["down", "--wipe", "--yes", "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert (told["stopped"], told["wiped"], len(told["stays"])) == (False, True, 1)


@pytest.mark.parametrize("file", ["kafka/data/file", "kafka/tmp/franz.txt", "logs/data/file", "postgres/data/file"])
def test_a_stack_does_not_start_in_a_folder_that_others_fill(file: str, home: Path) -> None:
    """Its first `up` would move logs, write over data and empty the folder of a JVM's temporary files."""
    name = file.partition("/")[0]
    fill(home, (file, "thesis.tex"))
    mode = (home / name).stat().st_mode
    with raises(UserError, Code.DATA_DIRECTORY, str(name)):
        data_directory.claim(home)
    assert files(home) == {file, "thesis.tex"}
    assert (home / name).stat().st_mode == mode


def started_broker(home: Path) -> None:
    Broker(home / "kafka", 1, 2, Path("/java"), [Path("/kafka_2.13-4.2.2.jar")]).prepare()


@pytest.mark.parametrize(
    ("prepare", "file"),
    [
        (started_broker, "kafka/data/__cluster_metadata-0/00000000000000000000.log"),
        (lambda home: PostgresServer(home / "postgres", 1).prepare(), "postgres/data/PG_VERSION"),
    ],
    ids=["kafka", "postgres"],
)
def test_data_that_no_stack_has_made_is_not_replaced(
    prepare: Callable[[Path], None], file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage without Kafka's own file, a database without its password: no start of a stack leaves either."""
    monkeypatch.setattr("onefold.stack.accounts.maker", lambda: None)
    fill(tmp_path, (file,))
    with raises(UserError, Code.DATA_DIRECTORY):
        prepare(tmp_path)
    assert (tmp_path / file).read_text(encoding="utf-8") == file


@pytest.mark.parametrize(
    ("image", "data"), [("postgres", "/var/lib/postgresql/data/pgdata"), ("kafka", "/var/lib/kafka/data")]
)
def test_a_container_does_not_replace_what_a_volume_holds(image: str, data: str, tmp_path: Path) -> None:
    """Its start script, with a folder of this test in the place of the volume."""
    fill(tmp_path, ("volume/mine",))
    script = (ROOT / "images" / image / "start").read_text(encoding="utf-8").replace(data, str(tmp_path / "volume"))
    script = script.replace("cp /opt/kafka/config/server.properties", f"touch {tmp_path / 'p'} #")
    script = script.replace("/tmp/server.properties", str(tmp_path / "p"))
    ran = subprocess.run(["bash", "-c", script], capture_output=True, encoding="utf-8", timeout=30, check=False)
    assert (ran.returncode, (tmp_path / "volume" / "mine").exists()) == (3, True)
    assert "volume holds files" in ran.stderr


def test_a_tool_of_kafka_needs_no_stack_and_keeps_none_from_its_home(tmp_path: Path) -> None:
    Broker(tmp_path / "kafka", 0, 0, Path("java"), []).tool("org.apache.kafka.tools.TopicCommand")
    (tmp_path / "kafka" / "tmp" / "libsnappyjava.so").touch()  # of a JVM that was killed
    data_directory.refuse_foreign(tmp_path)
    data_directory.claim(tmp_path)
    assert data_directory.wipe(tmp_path) == []
    assert not data_directory.is_ours(tmp_path)
