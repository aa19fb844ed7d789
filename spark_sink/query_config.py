"""The plan of a query: the data shared by the query and the batches."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from onefold.spark_sink.contracts import Domain
from onefold.spark_sink.postgres.connection import Connection
from onefold.telemetry import SILENT, Telemetry

# The approximate maximum number of offsets in a batch.
MAX_OFFSETS_PER_BATCH = 400_000

# The maximum size in bytes of a transaction's lines. The lines of two transactions, the current and the next, are in memory,
# both in the JVM (1 GB) and in the sink. A batch of MAX_OFFSETS_PER_BATCH records of usual size is below the maximum.
LINE_BYTES_MAX = 100_000_000


class Logins(NamedTuple):
    """The logins of a query: settings of librdkafka for reading, and the DSN for writing."""

    kafka_options: dict[str, str]
    postgres_dsn: str


@dataclass(frozen=True)
class QueryConfig:
    """Configuration of one streaming query. `java_options` are settings of Kafka's Java client.

    `interval_s` is the time between the starts of two batches. 0: the next batch starts immediately. `map_fails` is called for
    each batch. True makes the batch's tasks fail on purpose. `guarantee` is called with the pipeline's name, `reads` and the
    query's session in Postgres, after the first response from Kafka and before the first read. Raises Refused.
    `unknown_contracts`: reject a processor's records of an unknown schema, as records of other producers, instead of refusing
    to continue. `held` is called repeatedly with the pipeline's name and the reason for a blocked statement in Postgres, and
    with "" at the end. `telemetry` receives the number of written offsets and rows, and the durations by `clock`, in monotonic
    seconds.
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
        """The topics with positions in the ledger."""
        return list(self.domain.contracts)
