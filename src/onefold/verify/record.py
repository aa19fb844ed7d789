"""A record as read by the verifier, and the place of a record."""

from typing import NamedTuple


class Source(NamedTuple):
    """The place of an input record."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


def source_of(text: bytes | None) -> Source | None:
    """Return the source named in a header, or None."""
    try:
        topic, partition, offset = (text or b"").decode().rsplit("/", 2)
        return Source(topic, int(partition), int(offset))
    except ValueError:
        return None


class ReadRecord(NamedTuple):
    """A record of any topic, as read. `timestamp_ms`: its timestamp in Kafka, in milliseconds since 1970; None: unknown."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = []  # noqa: RUF012 - never written to
    timestamp_ms: int | None = None

    def header(self, name: str) -> bytes | None:
        """Return the last header with this name, as Kafka's own clients do."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None
