"""Topics, tables, logs and passwords are their owner's alone: in new homes and in those of an older Onefold."""

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.config import private_files, stack_state
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.stack import postgres
from onefold.stack.postgres import PostgresServer
from tests.support.coded import raises

ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="only root has another account for PostgreSQL")
WALK_AS_ANYBODY = 0o711 if ROOT else 0o700


def mode(path: Path) -> int:
    """The permissions of a file or folder."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """From one that forbids nothing to one that forbids too much."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account can walk to, unlike a test's own."""
    folder = Path(tempfile.mkdtemp(prefix="onefold-open-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def open_room(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A room for root's databases that is this test's own."""
    monkeypatch.setattr(postgres, "OPEN_ROOM", open_folder / "room")
    return open_folder / "room"


def assert_private(home: Path) -> None:
    assert mode(home) & 0o066 == 0, "others read its home"
    assert {name: mode(home / name) for name in private_files.FOLDERS} == dict.fromkeys(private_files.FOLDERS, 0o700)


def test_a_new_home_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    private_files.secure(tmp_path / "home")
    assert_private(tmp_path / "home")
    assert mode(tmp_path / "home") == WALK_AS_ANYBODY


def test_what_an_older_onefold_left_open_is_closed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name in ("run", "kafka/data", "postgres/data", "logs", "checkpoints", "demo"):
        (home / name).mkdir(parents=True, mode=0o755)
    private_files.secure(home)
    assert_private(home)
    assert mode(home) == WALK_AS_ANYBODY


def test_rights_are_never_given(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    private_files.secure(home)
    assert mode(home) == 0o700


def test_a_folder_that_is_not_ours_alone_keeps_its_mode(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    (home / "thesis.tex").touch()
    private_files.secure(home)
    assert mode(home) == 0o755
    assert {mode(home / name) for name in private_files.FOLDERS} == {0o700}


def test_what_a_link_leads_to_is_the_users_affair(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    elsewhere.chmod(0o755)
    (home / "run").symlink_to(elsewhere)
    private_files.secure(home)
    assert mode(elsewhere) == 0o755


def test_the_machines_own_root_is_no_home() -> None:
    before = mode(Path("/"))
    with raises(UserError, Code.FOLDER_UNUSABLE):
        private_files.secure(Path("/"))
    assert mode(Path("/")) == before


def test_a_file_with_a_secret_is_private_whatever_was_there(tmp_path: Path, umask: int) -> None:
    file = tmp_path / "run" / "plan.json"
    stack_state.write(file, {"password": "x"})
    assert mode(file) == 0o600
    open_file = tmp_path / "open"
    open_file.touch()
    open_file.chmod(0o666)
    private_files.write(open_file, "x")
    assert mode(open_file) == 0o600


def test_up_secures_the_home_before_anything_is_written_there(tmp_path: Path) -> None:
    """Also when it then fails."""
    home = tmp_path / "home"
    (home / "run").mkdir(parents=True, mode=0o755)
    home.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environment = {
            **os.environ,
            "ONEFOLD_HOME": str(home),
            "ONEFOLD_KAFKA_PORT": str(taken.getsockname()[1]),
        }
        program = "import os, sys; os.umask(0); from onefold.cli import main; sys.exit(main.run(['up']))"
        done = subprocess.run([sys.executable, "-c", program], env=environment, check=False, capture_output=True)
    assert b"ONEFOLD_KAFKA_PORT" in done.stderr
    assert_private(home)


@pytest.mark.postgres
def test_the_database_is_private_in_an_old_home_and_keeps_its_password(tmp_path: Path, open_room: Path) -> None:
    server = PostgresServer(tmp_path / "postgres", 1)
    server.prepare()
    password = (server.home / "password").read_text(encoding="utf-8")
    for opened in (server.home, server._room):
        opened.chmod(0o755)
    (server.home / "password").chmod(0o644)
    server.prepare()
    assert {mode(folder) for folder in (server.home, server._room, server.data)} == {0o700}
    assert mode(server.home / "password") == 0o600
    assert (server.home / "password").read_text(encoding="utf-8") == password


@pytest.mark.long  # 19 s
@as_root
@pytest.mark.postgres
@pytest.mark.parametrize("umask", [0o000, 0o077], indirect=True)
@pytest.mark.parametrize("closed", [False, True], ids=["in the home", "in a room of its own"])
def test_the_database_of_root_is_reached_by_its_account_and_by_nobody_else(
    open_folder: Path, open_room: Path, umask: int, closed: bool
) -> None:
    if closed:
        open_folder.chmod(0o711)
        (open_folder / "closed").mkdir(mode=0o700)
        (open_folder / "closed").chmod(0o700)
    home = open_folder / "closed" / "home" if closed else open_folder / "home"
    private_files.secure(home)
    server = PostgresServer(home / "postgres", 1)
    server.prepare()
    assert server._room.parent == (open_room if closed else home)
    assert {mode(folder) for folder in (server.home, server._room, server.data)} == {0o700}
    owner = server.account
    assert owner is not None
    # As the account itself: it can read what it has to.
    read = subprocess.run(
        ["cat", str(server.data / "PG_VERSION")], user=owner[0], group=owner[1], extra_groups=[], check=False
    )
    assert read.returncode == 0
    # As anybody else: nothing.
    other = subprocess.run(
        ["ls", str(server._room)], user=owner[0] - 1, group=owner[1] - 1, extra_groups=[], check=False
    )
    assert other.returncode != 0


@as_root
def test_a_user_who_is_root_just_now_gets_no_second_database(open_folder: Path, open_room: Path) -> None:
    """The home is the user's own and closed to PostgreSQL's account: an empty database elsewhere would look like a loss."""
    home = open_folder / "home"
    (home / "postgres" / "data").mkdir(parents=True)
    (home / "postgres" / "data" / "PG_VERSION").write_text("18\n", encoding="utf-8")
    (home / "postgres" / "password").write_text("mine", encoding="utf-8")
    home.chmod(0o700)
    server = PostgresServer(home / "postgres", 1)
    server.prepare()
    assert server._room == server.home
    assert (home / "postgres" / "password").read_text(encoding="utf-8") == "mine"
    assert not open_room.exists()


def test_a_home_where_no_folder_can_be_made_is_refused() -> None:
    with raises(UserError, Code.FOLDER_UNUSABLE, "/proc/onefold"):
        private_files.secure(Path("/proc/onefold"))
