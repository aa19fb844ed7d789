"""What a record and an event say of their envelope."""

from onefold.processor.core.values import Event, Record


def test_without_an_envelope_there_is_no_time_and_no_header() -> None:
    """A handler is tested with events that nobody has sent."""
    for made in (Event("orders", 0, 7, None), Record("orders", 0, 7, None, None)):
        assert (made.timestamp_ms, list(made.headers)) == (0, [])
