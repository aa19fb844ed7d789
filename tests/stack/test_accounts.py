"""Where root starts a stack, its database has an account of its own, and no copy of the programs stays that no stack uses."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from onefold.config import private_files
from onefold.stack import accounts, postgres, postgres_copies
from onefold.stack.child import Child
from onefold.stack.ports import free_ports
from onefold.stack.postgres import PostgresServer

pytestmark = [pytest.mark.promise("accounts-of-root"), pytest.mark.slow]  # starts a process a test

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has another account for PostgreSQL")


@pytest.fixture
def open_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every account can walk to, unlike a test's own."""
    folder = Path(tempfile.mkdtemp(prefix="onefold-open-", dir="/tmp"))
    folder.chmod(0o755)
    monkeypatch.setattr(postgres, "OPEN_ROOM", folder / "room")
    yield folder
    shutil.rmtree(folder)


def owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


def started(server: PostgresServer, log: Path) -> Child:
    child = Child(server.service(log))
    child.start()
    child.wait_ready()
    return child


@as_root
@pytest.mark.postgres
@pytest.mark.parametrize("closed", [False, True], ids=["in the home", "in a room of its own"])
def test_the_database_runs_as_an_account_that_nothing_else_has(closed: bool, open_folder: Path) -> None:
    """Also one that 0.1.0 made, which belongs to `nobody`."""
    home = open_folder / "closed" / "home" if closed else open_folder / "home"
    home.parent.mkdir(mode=0o700, exist_ok=True)
    private_files.secure(home)
    server = PostgresServer(home / "postgres", free_ports(1)[0])
    server.prepare()
    number = (server.account or (0, 0))[0]
    assert number not in (0, accounts.maker())
    with pytest.raises(KeyError):
        pwd.getpwuid(number)
    assert owners(server.data) == {number}
    accounts.give(server.data, accounts.maker() or (0, 0))
    os.chown(server._room, *(accounts.maker() or (0, 0)))
    server.prepare()
    assert owners(server.data) == {number}

    child = started(server, home / "logs" / "postgres.log")
    try:
        assert psutil.Process(child.pid).uids().effective == number
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        other = accounts.maker() or (0, 0)
        for attempt in (["ls", str(server.data)], ["kill", "-0", str(child.pid)]):
            asked = subprocess.run(attempt, user=other[0], group=other[1], extra_groups=[], capture_output=True)
            assert asked.returncode != 0
    finally:
        child.stop()


@as_root
def test_each_stack_has_another_account_and_keeps_it(tmp_path: Path) -> None:
    found = {accounts.of(tmp_path / name, tmp_path / "none") for name in map(str, range(50))}
    assert len(found) == 50
    assert accounts.of(tmp_path / "1", tmp_path / "none") == accounts.of(tmp_path / "1", tmp_path / "none")


@as_root
def test_a_database_of_a_user_stays_the_users(tmp_path: Path) -> None:
    """As of one who is root just now."""
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 4321, 4322)
    assert accounts.of(tmp_path, data) == (4321, 4322)


@as_root
def test_in_a_user_namespace_the_account_is_one_that_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = tmp_path / "map"
    few.write_text("         0     100000      65536\n", encoding="utf-8")
    monkeypatch.setattr(accounts, "_MAPS", (few, few))
    assert (accounts.of(tmp_path, tmp_path / "none") or (0, 0))[0] < 65536
    few.write_text("         0          0 4294967295\n", encoding="utf-8")
    assert (accounts.of(tmp_path, tmp_path / "none") or (0, 0))[0] > 65536


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Those of a wheel that only its owner may read."""
    folder = tmp_path / "site" / "package" / "pginstall18" / "bin"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "postgres").write_text("#!/bin/sh\n", encoding="utf-8")
    (folder / "postgres").chmod(0o700)
    return folder


def test_stacks_share_one_copy_and_the_last_one_removes_it(tmp_path: Path, programs: Path) -> None:
    room, homes = tmp_path / "room", [tmp_path / name for name in ("a", "b", "c")]
    for home in homes:
        home.mkdir()
    found = {postgres_copies.shared(room, programs, home) for home in (*homes, homes[0])}
    (folder,) = found
    assert (folder / "postgres").stat().st_mode & 0o005 == 0o005
    postgres_copies.release(room, homes[0])
    assert folder.exists()
    homes[1].rmdir()  # by hand, and not by a wipe
    postgres_copies.release(room, homes[2])
    assert [path.name for path in room.iterdir()] == ["copies.lock"]


def test_copies_that_0_1_0_has_left_are_removed_when_nothing_runs_from_them(tmp_path: Path) -> None:
    old, in_use = tmp_path / "postgresql-123-456", tmp_path / "postgresql-123-789"
    for folder in (old, in_use, tmp_path / "065b8eb0dbd1800f"):
        folder.mkdir()
    shutil.copy(shutil.which("sleep") or "", in_use / "sleep")
    running = subprocess.Popen([in_use / "sleep", "60"])
    try:
        postgres_copies.release(tmp_path, tmp_path / "home")
        assert {path.name for path in tmp_path.iterdir()} == {"copies.lock", in_use.name, "065b8eb0dbd1800f"}
    finally:
        running.kill()
        running.wait()
    postgres_copies.release(tmp_path, tmp_path / "home")
    assert not in_use.exists()
