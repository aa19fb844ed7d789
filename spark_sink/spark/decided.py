"""The rows of a micro-batch of a decision log: which of its records came true is found out on the driver, what they write is
decoded in the JVM, like the records of output topics."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import from_avro

from onefold.spark_sink.contracts import Domain
from onefold.spark_sink.decisions import PLACE_BITS, Seen, log_of, seen, summary
from onefold.spark_sink.landing.ledger import OffsetRange, Partition
from onefold.spark_sink.spark import read
from onefold.spark_sink.spark.rows import SparkRows, map_in_arrow

_FOLDER = Path(str(resources.files("onefold"))) / "avro" / "engine"
_DECISION = (_FOLDER / "decision.avsc").read_text()
_WRITES = (_FOLDER / "writes.avsc").read_text()

# What there is to know of a record of the log, as Spark writes a schema. The proposal is small: it has no body.
_SEEN = "partition int, offset long, fingerprint long, written long, proposal string"
_SEEN_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("fingerprint", pa.int64()),
        ("written", pa.int64()),
        ("proposal", pa.string()),
    ]
)


class LogRows(SparkRows):
    """A micro-batch as `read.source` gives it. It has rows when it is known what came true."""

    @contextmanager
    def held(self, offsets: int) -> Iterator[Self]:
        """The records are kept meanwhile: they are read to find out what came true, and again for what that writes."""
        frame = self._but_failing(self._frame).coalesce(self._tasks(offsets)).persist()
        try:
            yield self._of(frame, offsets)
        finally:
            frame.unpersist()

    def seen(self, *, on_driver: bool) -> Mapping[Partition, Sequence[Seen]]:
        """One Spark job. Python reads the records, with the replicas' own code: what is a proposal is a part of the rule. For a
        few the executors' Python would be woken, and they would wait for it."""
        known = self._frame.select("partition", "offset", "value", sf.expr(read.FINGERPRINT).alias("fingerprint"))
        log = log_of(self._plan.domain.name)
        found: dict[Partition, list[Seen]] = {}
        if on_driver:
            told = pa.Table.from_batches(_summaries(known.toArrow().to_batches()), _SEEN_SCHEMA)
        else:
            told = map_in_arrow(known, _summaries, _SEEN).toArrow()
        for row in told.to_pylist():
            record = seen(row["offset"], row["fingerprint"], row["written"], row["proposal"])
            found.setdefault((log, row["partition"]), []).append(record)
        return found

    def decided(self, ranges: Sequence[OffsetRange]) -> Self:
        """Of the records that came true. In one expression: a call into the JVM for each offset took seconds of a batch."""
        came_true = [
            f"partition = {part.partition} AND offset IN ({', '.join(map(str, part.decisions.offsets))})"
            for part in ranges
            if part.decisions is not None and part.decisions.offsets
        ]
        return self._of(self._frame.where(" OR ".join(came_true) or "false"), self._offsets)


def of_decisions(domain: Domain, reduced: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], DataFrame]:
    """What makes rows to be staged of decisions: of what these write for the topics that have tables, as `read.Lines` makes
    them of records, and then `reduced`. `offset` is the place in the log. Its columns are made once, and not for each batch.
    """
    failed = sf.raise_error(sf.lit("what a decision writes cannot be read"))
    body = from_avro(sf.expr("substring(value, 2)"), _DECISION, read.AVRO)["writes"].alias("writes")
    listed = sf.coalesce(from_avro(sf.col("writes"), _WRITES, read.AVRO), failed).alias("writes")
    numbered = sf.posexplode("writes").alias("number", "write")
    has_tables = sf.col("write.topic").isin(list(domain.contracts))
    place = sf.shiftleft("offset", PLACE_BITS).bitwiseOR(sf.col("number").cast("bigint")).alias("offset")
    fields = [
        sf.col("write.topic").alias("written_to"),
        sf.col("write.key").alias("key"),
        sf.col("write.value").alias("value"),
    ]
    origin = [sf.col(name) for name in ("topic", "partition", "timestamp")]
    known = [*origin, sf.col("offset")]
    to_lines = read.Lines(domain, "written_to")

    def made(decisions: DataFrame) -> DataFrame:
        writes = decisions.select(*known, body).select(*known, listed).select(*known, numbered).where(has_tables)
        return reduced(to_lines(writes.select(*origin, place, *fields)))

    return made


def _summaries(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    for batch in batches:
        told = [summary(value) for value in batch["value"].to_pylist()]
        columns = {
            "partition": batch["partition"],
            "offset": batch["offset"],
            "fingerprint": batch["fingerprint"],
            "written": pa.array([size for size, _ in told], pa.int64()),
            "proposal": pa.array([about for _, about in told], pa.string()),
        }
        yield pa.RecordBatch.from_pydict(columns, schema=_SEEN_SCHEMA)
