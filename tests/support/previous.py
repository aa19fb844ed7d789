"""Data written by the previous release (tests/data), in the form that tests need."""

import base64
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from onefold.processor.testing import SimulatedLog
from onefold.processor.testing.log import Entry

FOLDER = Path(__file__).parents[1] / "data" / "0.1.0-be8115e"
PARTITIONS = 2
DOMAINS = ("runner", "campaigns", "trades")


class Kept(NamedTuple):
    """A committed record. `timestamp`: milliseconds since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


@dataclass
class Topics:
    """All topics of a pipeline: ids, ends of the partitions, and committed records in order."""

    ids: dict[str, str]
    ends: dict[tuple[str, int], int]
    records: list[Kept]

    def of(self, topic: str) -> list[Kept]:
        """Records of one topic, partition by partition."""
        return [record for record in self.records if record.topic == topic]

    def as_log(self) -> SimulatedLog:
        """A simulated log with the same ids and offsets. Offsets without a committed record become markers."""
        log = SimulatedLog()
        for topic, topic_id in self.ids.items():
            log.create(topic, PARTITIONS)
            log._topics[topic].topic_id = topic_id
        marker = Entry(0, True, None, None, ())
        for (topic, partition), end in self.ends.items():
            log._topics[topic].partitions[partition] += [marker] * end
        for topic, partition, offset, _, key, value, headers in self.records:
            log._topics[topic].partitions[partition][offset] = Entry(0, False, key, value, headers)
        return log


def topics(domain: str) -> Topics:
    """Topics as they were in Kafka."""
    with gzip.open(FOLDER / f"{domain}.jsonl.gz", "rt", encoding="utf-8") as lines:
        head, *rows = map(json.loads, lines)
    ends = {(name.rpartition("/")[0], int(name.rpartition("/")[2])): end for name, end in head["ends"].items()}
    return Topics(head["topic_ids"], ends, [_kept(*row) for row in rows])


def database() -> bytes:
    """SQL that restores the database."""
    return gzip.decompress((FOLDER / "database.sql.gz").read_bytes())


def _kept(
    topic: str, partition: int, offset: int, timestamp: int, key: str | None, value: str | None, headers: list[Any]
) -> Kept:
    named = tuple((name, text.encode()) for name, text in headers)
    return Kept(topic, partition, offset, timestamp, _bytes(key), _bytes(value), named)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
