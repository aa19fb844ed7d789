"""The rows of a micro-batch of a decision log: which of its records came true is found out beside Spark, what they write is
decoded in the JVM, like the records of output topics."""

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import from_avro

from onefold.spark_sink.contracts import Domain
from onefold.spark_sink.decisions import PLACE_BITS, Seen
from onefold.spark_sink.kafka.log_reader import LogReader
from onefold.spark_sink.landing.ledger import OffsetRange, Partition
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.spark import read
from onefold.spark_sink.spark.rows import SparkRows

_FOLDER = Path(str(resources.files("onefold"))) / "avro" / "engine"
_DECISION = (_FOLDER / "decision.avsc").read_text()
_WRITES = (_FOLDER / "writes.avsc").read_text()

# Partition and offset of a record as one number: offsets have no more bits (`PLACE_BITS`). No record is at `_NOWHERE`.
_OFFSET_BITS = 63 - PLACE_BITS
_PLACE = f"(shiftleft(cast(partition AS bigint), {_OFFSET_BITS}) | offset)"
_NOWHERE = -1


class LogRows(SparkRows):
    """A micro-batch as `read.source` gives it. It has rows when it is known what came true: `log` reads that beside Spark."""

    def __init__(
        self,
        plan: Plan,
        frame: DataFrame,
        reduced: Callable[[DataFrame], DataFrame],
        parallelism: int,
        offsets: int = 0,
        *,
        log: LogReader,
    ) -> None:
        super().__init__(plan, frame, reduced, parallelism, offsets)
        self._log = log

    def seen(self, ranges: Sequence[OffsetRange]) -> Mapping[Partition, Sequence[Seen]]:
        """Python reads the records, with the replicas' own code: what is a proposal is a part of the rule."""
        return {part.key: self._log.records(part) for part in ranges}

    def decided(self, ranges: Sequence[OffsetRange]) -> Self:
        """Of the records that came true. In one expression: a call into the JVM for each offset took seconds of a batch. And in
        one list, never of one number: the code that Spark generates is the same for each batch then, and compiled once."""
        came_true = [_NOWHERE, _NOWHERE - 1]
        for part in ranges:
            if part.decisions is not None:
                came_true += [part.partition << _OFFSET_BITS | offset for offset in part.decisions.offsets]
        listed = ", ".join(map(str, came_true))
        return self._of(self._frame.where(f"{_PLACE} IN ({listed})"), self._offsets)

    def _of(self, frame: DataFrame, offsets: int) -> Self:
        return type(self)(self._plan, frame, self._reduced, self._parallelism, offsets, log=self._log)


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
