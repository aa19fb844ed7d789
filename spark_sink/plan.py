"""The plan of a query: the data that the query and the batches share."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from onefold.spark_sink.contracts import Domain
from onefold.spark_sink.decisions import log_of
from onefold.spark_sink.postgres.connection import Connection
from onefold.telemetry import SILENT, Telemetry

# How many offsets a batch covers at most, about: no larger batch has been measured.
MAX_OFFSETS_PER_BATCH = 400_000

# Batches of at most this many offsets are staged through the driver: all that there are, since the next one is read while one
# is landed (docs/decisions/0043). Executors copy on all cores, which are not idle then.
DRIVER_STAGING_OFFSETS = MAX_OFFSETS_PER_BATCH
# But not more lines than this: of two batches they are in the memory of the JVM, which has 1 GB, and of the sink.
DRIVER_STAGING_LINES = 100_000_000

# The same of a decision log, whose records are transactions: by what they write, and not by how many there are. A line has up to
# twice the bytes of what was written.
DRIVER_STAGING_BYTES = DRIVER_STAGING_LINES // 2
# A batch of it covers as many records as have so many bytes together, about, but no fewer and no more than these. It is kept
# while it is landed and the next one is read: two of them in a JVM of 1 GB, and on disk what has no room. A record has a hundred
# bytes or some MB. Two replicas write 100 to 500 a second, and a batch takes seconds where no core is idle: with fewer in it
# than have come meanwhile, rows would fall behind for ever (docs/decisions/0049).
LOG_BATCH_BYTES = 64_000_000
MIN_DECISIONS_PER_BATCH = 400
MAX_DECISIONS_PER_BATCH = 4_000
# What came true is found out by the driver, of records that have no more than this together if all were as large: one that is
# larger wakes Python workers, which take longer for a few than the driver for thousands. It has that much memory twice.
DRIVER_READING_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Plan:
    """What a query works with. `kafka_options` are librdkafka's; `java_options` say the same to Kafka's Java client.

    `map_fails` is asked for each batch whether its tasks should fail on purpose.
    `decided`: the pipeline has replicas, and its tables are filled from their decision log, whoever publishes or does not.
    `guarantee` is called with the domain's name, `reads` and the query's session
    in Postgres before anything is read, when Kafka has answered too; it raises Refused. `unknown_contracts`: what a processor
    wrote with a contract that is not known here is set aside like what others wrote. `held` is called with the domain's name and
    what keeps a statement in Postgres, again and again, and with "" at the end. `telemetry` is told what has landed, and
    how long that took by `clock`, in monotonic seconds.
    """

    domain: Domain
    bootstrap_servers: str
    kafka_options: dict[str, str]
    java_options: dict[str, str]
    postgres_dsn: str
    writer: str
    sql_root: Path
    checkpoint_root: Path
    step: Callable[[str], None]
    map_fails: Callable[[], bool] = lambda: False
    driver_staging_offsets: int = DRIVER_STAGING_OFFSETS
    driver_staging_lines: int = DRIVER_STAGING_LINES
    max_offsets: int = MAX_OFFSETS_PER_BATCH
    decided: bool = False
    driver_staging_bytes: int = DRIVER_STAGING_BYTES
    driver_reading_bytes: int = DRIVER_READING_BYTES
    max_decisions: int = MAX_DECISIONS_PER_BATCH
    guarantee: Callable[[str, Sequence[str], Connection], None] = lambda name, topics, connection: None
    unknown_contracts: bool = False
    held: Callable[[str, str], None] = lambda name, sentence: None
    telemetry: Telemetry = SILENT
    clock: Callable[[], float] = time.monotonic

    def of_decisions(self, mean_bytes: float) -> Self:
        """For a log whose records have so many bytes, about: how many of them a batch covers."""
        few = max(MIN_DECISIONS_PER_BATCH, int(LOG_BATCH_BYTES / max(1.0, mean_bytes)))
        return replace(self, max_decisions=min(self.max_decisions, few))

    @property
    def reads(self) -> list[str]:
        """The topics whose offsets the ledger keeps."""
        return [log_of(self.domain.name)] if self.decided else list(self.domain.contracts)
