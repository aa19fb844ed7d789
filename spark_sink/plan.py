"""What a query and its batches work with; they know each other by this."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onefold.spark_sink.contracts import Domain

# Batches of at most this many offsets are staged through the driver. Measured on 2 busy cores, 12 partitions, warm,
# whole sink, rows/s through the driver and through the executors, by offsets per batch:
#      3,000   20,100    7,400        60,000   54,500   36,000
#     12,000   40,200   18,600       120,000   86,100   83,300
#     30,000   27,500   32,800       400,000  103,000  199,500
# A batch through the executors costs about 0.15 s more (connections, Python workers, TRUNCATE); from about a hundred
# thousand on, copying on all cores is worth that.
DRIVER_STAGING_OFFSETS = 100_000

# How many offsets a batch covers at most, about: the largest that was measured; its rows take some 25 MB.
MAX_OFFSETS_PER_BATCH = 400_000


@dataclass(frozen=True)
class Plan:
    """What a query works with. `kafka_options` are librdkafka's; `java_options` say the same to Kafka's Java client.

    `notes` is a folder for what is the same at every start; it may be emptied at any moment. `map_fails` is asked for each
    batch whether its tasks should fail on purpose.
    """

    domain: Domain
    bootstrap_servers: str
    kafka_options: dict[str, str]
    java_options: dict[str, str]
    postgres_dsn: str
    writer: str
    sql_root: Path
    checkpoint_root: Path
    notes: Path
    step: Callable[[str], None]
    map_fails: Callable[[], bool] = lambda: False
    driver_staging_offsets: int = DRIVER_STAGING_OFFSETS
    max_offsets: int = MAX_OFFSETS_PER_BATCH
