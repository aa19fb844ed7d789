"""Aliases and names of earlier releases."""

import pytest

from onefold.cli import main, names
from onefold.exit_codes import OK
from tests.support.verbs import COMMANDS


@pytest.mark.parametrize(
    ("line", "now", "said"),
    [
        ("status --json", "status --json", ""),
        ("ps --json", "status --json", ""),
        ("", "", ""),
        ("dead-letters replay shop", "dead-letters replay shop", ""),
        ("replay shop --from 2h --dry-run", "rebuild shop --since 2h --dry-run", "replay --from` is `onefold rebuild --since`"),
        ("replay shop --from=2h", "rebuild shop --since=2h", "replay --from` is `onefold rebuild --since`"),
        ("chaos --workload a --workload=b", "chaos --pipeline a --pipeline=b", "chaos --workload` is `onefold chaos --pipeline`"),
        ("chaos --list", "chaos --list", ""),
        ("redrive shop --since 2h", "jobs requeue shop --since 2h", "redrive` is `onefold jobs requeue`"),
        ("prepare shop --keep-going", "migrate shop --keep-going", "prepare` is `onefold migrate`"),
        ("sheet open budget --at 2", "sheets open budget --at 2", "sheet` is `onefold sheets`"),
        ("sweep sheets --older-than 1h", "sheets sweep --older-than 1h", "sweep` is `onefold sheets sweep`"),
        ("sweep --dry-run sheets", "sheets sweep --dry-run", "sweep` is `onefold sheets sweep`"),
        ("config show --json", "config --json", "config show` is `onefold config`"),
        ("bench trades --paced", "trades evaluate --paced", "bench trades` is `onefold trades evaluate`"),
        ("bench sink", "bench sink", ""),
        ("replay --help", "rebuild --help", "replay` is `onefold rebuild`"),
    ],
)  # fmt: skip
def test_a_command_line_by_the_present_names(line: str, now: str, said: str) -> None:
    words, sentence = names.present(line.split())
    assert words == now.split()
    assert said in sentence
    assert bool(said) is bool(sentence)


def test_an_empty_argument_stays() -> None:
    """As of a variable without a value: it must not become a command on all pipelines."""
    assert names.present(["prepare", ""])[0] == ["migrate", ""]
    assert names.present(["sweep", "sheets", ""])[0] == ["sheets", "sweep", ""]


def test_what_a_former_name_is_now_exists_and_the_name_is_free() -> None:
    for words, now in names.FORMER.items():
        assert now.words in COMMANDS
        assert words == now.words or words not in COMMANDS
    assert {(verb,) for verb in names.ALIASES.values()} <= set(COMMANDS)
    assert not {(alias,) for alias in names.ALIASES} & set(COMMANDS)


def test_the_line_that_says_the_new_name_is_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """What is on stdout may be for a program. An alias is a name like any other, and says nothing."""
    assert main.run(["replay", "--help"]) == OK
    told = capsys.readouterr()
    assert told.out.startswith("Usage: onefold rebuild ")
    assert told.err == "`onefold replay` is `onefold rebuild` now; the next release does not have the old name\n"
    assert main.run(["ps", "--help"]) == OK
    told = capsys.readouterr()
    assert told.out.startswith("Usage: onefold status ")
    assert "`onefold ps`" in " ".join(told.out.split())
    assert told.err == ""
