"""A user without HOME and without an entry in /etc/passwd, as `--user 54321` of a container: commands work, or say why not."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onefold.config import settings
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.stack import java
from tests.support.coded import code_of

pytestmark = [pytest.mark.promise("no-account"), pytest.mark.slow]  # starts a process a test

UID = 54321
NAMES = ("HOME", "USER", "LOGNAME", "USERNAME", "XDG_CACHE_HOME", "ONEFOLD_CACHE", "ONEFOLD_HOME")
AS_NOBODY = ["unshare", "--user", f"--map-user={UID}", f"--map-group={UID}"]

Onefold = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def nameless(tmp_path: Path) -> Onefold:
    """Runs a program as that user, in an empty folder of its own."""
    if (
        shutil.which("unshare") is None
        or subprocess.run([*AS_NOBODY, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this machine gives no user namespace, and so no user without a name")
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}

    def run(*command: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*AS_NOBODY, sys.executable, "-P", *command],
            env=environment | more, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False, timeout=300,
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("new shop", 0, "shop.py"),
        ("check", 0, "runner: nothing is wrong"),
        ("status", 0, ".onefold is not running"),
        ("config show", 0, ".onefold/cache"),
        ("produce runner.updates --count 1", 1, "there is no Kafka to talk to"),
        ("verify runner", 2, "there is no Kafka to talk to"),
        ("down", 0, "The stack was not running."),
        pytest.param(
            "up --only postgres",
            1,
            f"PostgreSQL cannot make its database as the user with uid {UID}",
            marks=[pytest.mark.broker, pytest.mark.postgres],
        ),
    ],
)
def test_commands_work_or_say_what_they_need(words: str, code: int, said: str, nameless: Onefold) -> None:
    ran = nameless("-m", "onefold.cli.main", *words.split())

    assert "Traceback" not in ran.stderr
    assert said in ran.stdout + ran.stderr
    assert ran.returncode == code


def test_a_home_that_stands_for_nothing_is_a_wrong_setting(nameless: Onefold) -> None:
    ran = nameless("-m", "onefold.cli.main", "status", ONEFOLD_HOME="~/stack")

    assert ran.returncode == USAGE
    assert code_of(ran.stderr, "ONEFOLD_HOME", "~/stack") is Code.SETTING_WRONG
    assert "neither HOME nor an entry in /etc/passwd" in ran.stderr


@pytest.mark.long  # 12 s
@pytest.mark.spark
def test_spark_starts(nameless: Onefold, tmp_path: Path) -> None:
    """Hadoop asks the system for the user's name."""
    program = (
        "import sys; from pathlib import Path; from onefold.spark_sink.spark import session;"
        "spark = session.Driver([], sys.argv[1], Path(sys.argv[2])).start(); print(spark.range(5).count()); spark.stop()"
    )
    ran = nameless("-c", program, str(java.locate(tmp_path / "cache").spark_home), str(tmp_path / "scratch"))

    assert ran.stdout == "5\n", ran.stderr


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user who has set no folder for the cache."""
    for name in ("ONEFOLD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path / "stack"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return tmp_path / "user"


def test_the_cache_is_the_users_own(user: Path) -> None:
    user.mkdir()
    assert settings.load().cache.is_relative_to(user)


def test_the_cache_is_in_the_stacks_home_where_the_user_can_have_none(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where HOME is / and the user is not root; one that somebody else has filled is used."""
    denied = {user.parent}
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) not in denied)
    assert settings.load().cache == user.parent / "stack" / "cache"
    (user / ".cache" / "onefold").mkdir(parents=True)
    denied |= {user, user / ".cache", user / ".cache" / "onefold"}
    assert settings.load().cache.is_relative_to(user)
