"""What `onefold rebuild` prints of what differs, and its name since a time."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onefold import status_file
from onefold.cli import main
from onefold.cli.commands import rebuild
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import OK, REFUSED
from onefold.operate.rebuild.rebuild import Rebuilt
from onefold.operate.rebuild.table_diff import Difference, Replaced
from tests.support.coded import raises


def test_what_strangers_wrote_is_text_and_no_command_to_a_terminal() -> None:
    """Keys and values of rows come from anybody's input."""
    one = Difference("changed", {"id": "\x1b[A"}, {"name": ("\x1b]0;title\x07", "a\nb")})
    done = Rebuilt("shop", (Replaced("shop.sales", 1, 1, 0, 0, 0, (one,)),), (), 0.1)
    lines = list(rebuild._lines(done, dry_run=True))
    assert r"  changed: id \x1b[A: name \x1b]0;title\x07, by the log a\nb" in lines
    assert all(line.isprintable() for line in lines)


def test_a_sink_beside_that_cannot_go_on_ends_the_rebuild(tmp_path: Path) -> None:
    """It would try again for ever, in a database in which nobody mends anything."""
    service = SimpleNamespace(log=tmp_path / "rebuild-one.log")
    sink: Any = SimpleNamespace(poll=lambda: None, service=service)
    for detail in ("written since the last start: one 7 offsets", ""):
        status_file.write(tmp_path / "rebuild-one.json", "running", detail, 0.0)
        rebuild._refuse_ended(sink)
    status_file.write(tmp_path / "rebuild-one.json", "waiting", "one is left out: PostgreSQL refuses every row", 0.0)
    with raises(UserError, Code.SINK_STOPPED, "PostgreSQL refuses every row") as raised:
        rebuild._refuse_ended(sink)
    assert raised.value.exit_code == REFUSED


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--from", "2h"], ("shop", "2h", False, False)),
        (["--from", "2h", "--dry-run", "--json"], ("shop", "2h", True, True)),
    ],
)
def test_its_former_name_says_the_new_one(
    words: list[str],
    given: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """For this release. JSON on stdout stays JSON, and neither help nor completion lists it."""
    called: list[tuple[Any, ...]] = []
    monkeypatch.setattr(rebuild, "command", lambda *options: called.append(options))
    assert main.run(["replay", "shop", *words]) == OK
    told = capsys.readouterr()
    assert called == [given]
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "`onefold rebuild --since`" in told.err
    assert main.run(["--help"]) == OK
    assert "\n  replay " not in capsys.readouterr().out
    assert main.build().commands["replay"].hidden


def test_what_a_verb_lacks_is_said_of_its_present_name() -> None:
    assert main._verb(["replay", "shop", "--from", "2h"]) == "rebuild"
    assert main._verb(["dead-letters", "replay", "shop"]) == "dead-letters"
