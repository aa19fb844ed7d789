"""Options that several commands have mean the same in each."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from onefold.cli.main import SERVICES, run
from onefold.exit_codes import OK
from onefold.operate.times import WRITTEN
from tests.support.verbs import COMMANDS, loaded

# Commands without --json, and why.
NOT_AS_JSON = {
    *((service,) for service in SERVICES), ("dashboard",),  # they log
    ("sql",), ("kafka",), ("test",), ("lint",), ("demo",),  # other programs print
    ("docs",), ("kubernetes",),  # text and files
    ("logs",), ("consume",),  # a line each
}  # fmt: skip


def with_option(name: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands that have the option, each with it. Those of bench are for developers."""
    for words in COMMANDS:
        yield from ((words, one) for one in loaded(words).params if name in one.opts and words[0] != "bench")


def test_a_dry_run_is_the_same_everywhere() -> None:
    found = dict(with_option("--dry-run"))
    assert {" ".join(words) for words in found} == {
        "rebuild", "reset", "jobs requeue", "sheets sweep", "dead-letters replay", "dead-letters drop"
    }  # fmt: skip
    assert {option.help for option in found.values()} == {
        "Only show what the command would do. Exit code 1: there is something."
    }


def test_a_time_is_written_the_same_way_everywhere() -> None:
    assert {words: WRITTEN in option.help for words, option in with_option("--since")} == {
        ("rebuild",): True, ("consume",): True, ("jobs", "requeue"): True,
        ("dead-letters", "list"): True, ("dead-letters", "replay"): True, ("dead-letters", "drop"): True,
    }  # fmt: skip


def test_every_command_that_answers_does_so_as_json_too() -> None:
    groups = {words for words in COMMANDS if getattr(loaded(words), "package", "")}
    asked = {words for words in COMMANDS if words not in groups and words[0] != "bench"}
    assert asked - {words for words, _ in with_option("--json")} == NOT_AS_JSON


def test_a_pipeline_is_called_so_everywhere() -> None:
    """As an argument PIPELINE, as an option --pipeline."""
    assert {words for words, _ in with_option("--pipeline")} == {("chaos",)}
    for words in COMMANDS:
        for one in loaded(words).params:
            assert "--workload" not in one.opts
            assert one.name not in ("domain", "domains") or str(one.metavar).startswith("PIPELINE"), words


def test_the_rights_in_kafka_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a server."""
    assert run(["acls", "runner", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["processor"]["principal"] == "onefold-processor"
