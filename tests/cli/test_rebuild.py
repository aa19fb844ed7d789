"""What `onefold rebuild` and `onefold replay` print of what differs."""

from onefold.cli.commands import rebuild
from onefold.operate.rebuild import Rebuilt
from onefold.operate.replacing import Difference, Replaced


def test_what_strangers_wrote_is_text_and_no_command_to_a_terminal() -> None:
    """Keys and values of rows come from anybody's input."""
    one = Difference("changed", {"id": "\x1b[A"}, {"name": ("\x1b]0;title\x07", "a\nb")})
    done = Rebuilt("shop", (Replaced("shop.sales", 1, 1, 0, 0, 0, (one,)),), (), 0.1)
    lines = list(rebuild._lines(done, dry_run=True))
    assert r"  changed: id \x1b[A: name \x1b]0;title\x07, by the log a\nb" in lines
    assert all(line.isprintable() for line in lines)
