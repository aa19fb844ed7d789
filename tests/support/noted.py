"""The sink's record of batches, beside the log of the batches."""

from contextlib import closing
from typing import Any, NamedTuple

import psycopg

from onefold.operate.record_reader import LogReader


class Noted(NamedTuple):
    """A row of `onefold.batch`, and the present timestamps of the records at its offsets."""

    topic: str
    partition: int
    records: int | None
    oldest_ms: int | None
    times: list[int]


def noted(connection: psycopg.Connection[Any], client: dict[str, str]) -> list[Noted]:
    """Read all rows of `onefold.batch`."""
    asked = "SELECT topic, partition, records, oldest_ms, first_offset, next_offset FROM onefold.batch"
    with closing(LogReader(client, 30)) as log:
        return [
            Noted(topic, partition, records, oldest_ms, [one.at_ms for one in log.read(topic, partition, start, end)])
            for topic, partition, records, oldest_ms, start, end in connection.execute(asked).fetchall()
        ]
