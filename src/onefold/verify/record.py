"""A record as the judge reads it, and where records lie."""

from typing import NamedTuple


class Source(NamedTuple):
    """Where an input record lies."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


def source_of(text: bytes | None) -> Source | None:
    """The source that a header names, or None when it names none."""
    try:
        topic, partition, offset = (text or b"").decode().rsplit("/", 2)
        return Source(topic, int(partition), int(offset))
    except ValueError:
        return None


class ReadRecord(NamedTuple):
    """A record of any topic as it was read. `timestamp_ms`: Kafka's time of it, in milliseconds since 1970; None: not known."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = []  # noqa: RUF012 - never written to
    timestamp_ms: int | None = None

    def header(self, name: str) -> bytes | None:
        """The last header of that name, as Kafka's own clients choose."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None
