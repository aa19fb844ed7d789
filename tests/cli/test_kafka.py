"""`onefold kafka`: what the tools of Kafka are given."""

import pytest

from onefold.cli.commands.kafka import with_servers


def nobody() -> str:
    raise AssertionError("servers are named")


@pytest.mark.parametrize("named", [["--bootstrap-server", "h:1"], ["--bootstrap-server=h:1"]])
def test_servers_that_are_named_are_taken_in_either_spelling(named: list[str]) -> None:
    """Nobody asks for the stack then, which may not run; and what looks like one is left alone."""
    other = ["--list", "--command-property=bootstrap-server=x"]
    assert with_servers([*other, *named], nobody) == [*other, "--bootstrap-server", "h:1"]


def test_else_they_are_ours() -> None:
    assert with_servers(["--list"], lambda: "ours:2") == ["--bootstrap-server", "ours:2", "--list"]
