"""What a record and an event say of their envelope."""

import pytest

from onefold.processor.core.values import Event, Record
from onefold.processor.testing.log import Entry, SimulatedEnvelope


def test_without_an_envelope_there_is_no_time_and_no_header() -> None:
    """A handler is tested with events that nobody has sent."""
    for made in (Event("orders", 0, 7, None), Record("orders", 0, 7, None, None)):
        assert (made.timestamp_ms, list(made.headers)) == (0, [])


@pytest.mark.parametrize(
    ("stored", "found"),
    [(b"5", 5), (b"9" * 15, 10**15 - 1), (b"9" * 16, 7), (b"-5", 7), (b"", 7), (None, 7)],
)
def test_the_time_of_a_copy_is_that_of_its_header_if_it_is_one(stored: bytes | None, found: int) -> None:
    """Else it is Kafka's own of the record: any sender may set the header."""
    envelope = SimulatedEnvelope(Entry(0, False, None, None, (("onefold-timestamp", stored),), 7))
    assert Record("orders", 0, 7, None, None, envelope).timestamp_ms == found
