"""The plan of a query: the data that the query and the batches share."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from onefold.spark_sink.contracts import Domain
from onefold.spark_sink.postgres.connection import Connection
from onefold.telemetry import SILENT, Telemetry

# How many offsets a batch covers at most, about: no larger batch has been measured.
MAX_OFFSETS_PER_BATCH = 400_000

# The most bytes of lines that one transaction writes. The lines of two transactions are in memory, of the JVM, which has 1 GB,
# and of the sink: those that are written, and the next. A batch of MAX_OFFSETS_PER_BATCH usual records has fewer.
LINE_BYTES_MAX = 100_000_000


class Logins(NamedTuple):
    """As whom a query reads and writes: settings of librdkafka, and the DSN."""

    kafka_options: dict[str, str]
    postgres_dsn: str


@dataclass(frozen=True)
class Plan:
    """Configuration of one streaming query. `java_options` are those of Kafka's Java client.

    `interval_s` lies between the starts of two batches; 0: the next batch starts at once.
    `map_fails` is asked for each batch whether its tasks should fail on purpose. `guarantee` is called with the domain's name,
    `reads` and the query's session in Postgres before anything is read, when Kafka has answered too; it raises Refused.
    `unknown_contracts`: what a processor wrote with a contract that is not known here is set aside like what others wrote.
    `held` is called with the domain's name and what keeps a statement in Postgres, again and again, and with "" at the end.
    `telemetry` is told what has landed, and how long that took by `clock`, in monotonic seconds.
    """

    domain: Domain
    java_options: dict[str, str]
    postgres_dsn: str
    writer: str
    sql_root: Path
    checkpoint_root: Path
    step: Callable[[str], None]
    map_fails: Callable[[], bool] = lambda: False
    line_bytes_max: int = LINE_BYTES_MAX
    max_offsets: int = MAX_OFFSETS_PER_BATCH
    interval_s: float = 0.0
    guarantee: Callable[[str, Sequence[str], Connection], None] = lambda name, topics, connection: None
    unknown_contracts: bool = False
    held: Callable[[str, str], None] = lambda name, sentence: None
    telemetry: Telemetry = SILENT
    clock: Callable[[], float] = time.monotonic

    @property
    def reads(self) -> list[str]:
        """The topics whose offsets the ledger keeps."""
        return list(self.domain.contracts)
