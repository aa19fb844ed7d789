"""Entries of Kafka's log of transactions, byte by byte."""

import struct

import pytest

from onefold.operate.held import Transaction, transaction

KEY = b"\x00\x00\x00\x0ahangs-here"
# As a broker of version 4 has written it: open, over t/1.
OPEN = (
    b"\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xea`\x01\x02\x02t\x02\x00\x00\x00\x01\x00"
    b"\x00\x00\x01\xa2\tm\x96\xdf\x00\x00\x01\xa2\tm\x96\xdd\x01\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00"
)
SINCE_MS = 0x1A2096D96DD
STATUS_AT = 16


def older(status: int, *topics: tuple[bytes, tuple[int, ...]]) -> bytes:
    """The first version's form."""
    partitions = b"".join(
        struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers)
        for name, numbers in topics
    )
    head = struct.pack(">hqhibi", 0, 7, 1, 60_000, status, len(topics))
    return head + partitions + struct.pack(">qq", 12, 11)


def test_an_open_transaction_says_since_when_and_where() -> None:
    assert transaction(KEY, OPEN) == ("hangs-here", Transaction("hangs-here", SINCE_MS, frozenset({("t", 1)})))
    found = transaction(KEY, older(1, (b"one", (0, 3)), (b"two", (2,))))
    places = frozenset({("one", 0), ("one", 3), ("two", 2)})
    assert found == ("hangs-here", Transaction("hangs-here", 11, places))


@pytest.mark.parametrize("status", range(8))
def test_it_is_open_until_it_is_marked_everywhere(status: int) -> None:
    """Empty, ongoing, prepared in two ways, completed in two ways, dead, fenced."""
    for value in (older(status, (b"t", (1,))), OPEN[:STATUS_AT] + bytes([status]) + OPEN[STATUS_AT + 1 :]):
        entry = transaction(KEY, value)
        assert entry is not None
        assert (entry[1] is not None) == (status in (1, 2, 3))


def test_an_id_that_has_expired_holds_nothing() -> None:
    assert transaction(KEY, None) == ("hangs-here", None)


def test_what_is_not_understood_is_no_entry() -> None:
    """Cut off anywhere, of a later version, or with fields that are not known: no error, and nothing made up."""
    assert transaction(None, OPEN) is None
    assert transaction(b"\x00\x01" + KEY[2:], OPEN) is None
    assert transaction(KEY, b"\x00\x02" + OPEN[2:]) is None
    assert transaction(KEY, OPEN.replace(b"\x00\x00\x00\x01\x00", b"\x00\x00\x00\x01\x01", 1)) is None
    whole = OPEN.index(b"\xdd") + 1
    assert [transaction(KEY, OPEN[:size]) for size in range(whole)] == [None] * whole
    assert transaction(KEY, OPEN[:whole]) is not None
