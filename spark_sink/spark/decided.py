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
_DECISION = (_FOLDER / "decision.avsc").read_text(encoding="utf-8")
_WRITES = (_FOLDER / "writes.avsc").read_text(encoding="utf-8")

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


# Partition and offset of a record as one number: offsets have no more bits (`PLACE_BITS`). No record is at `_NOWHERE`.
_OFFSET_BITS = 63 - PLACE_BITS
_PLACE = f"(shiftleft(cast(partition AS bigint), {_OFFSET_BITS}) | offset)"
_NOWHERE = -1


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

    def seen(self) -> Mapping[Partition, Sequence[Seen]]:
        """Python reads the records, with the replicas' own code: what is a proposal is a part of the rule. Small ones come to
        the driver in one Spark job; for large ones, which it may have no memory for, there is another in the executors' Python.
        """
        small = f"coalesce(length(value), 0) <= {_small(self._plan.driver_reading_bytes, self._offsets)}"
        about = ["partition", "offset", f"{read.FINGERPRINT} AS fingerprint"]
        given = self._frame.selectExpr(*about, f"if({small}, value, NULL) AS value", f"{small} AS small").toArrow()
        told = [pa.Table.from_batches(_summaries(given.filter(given["small"]).to_batches()), _SEEN_SCHEMA)]
        if told[0].num_rows < given.num_rows:
            large = self._frame.where(f"NOT {small}").selectExpr(*about, "value")
            told.append(map_in_arrow(large, _summaries, _SEEN).toArrow())
        log = log_of(self._plan.domain.name)
        found: dict[Partition, list[Seen]] = {}
        for row in pa.concat_tables(told).to_pylist():
            record = seen(row["offset"], row["fingerprint"], row["written"], row["proposal"])
            found.setdefault((log, row["partition"]), []).append(record)
        return found

    def decided(self, ranges: Sequence[OffsetRange]) -> Self:
        """Of the records that came true. In one expression: a call into the JVM for each offset took seconds of a batch. And in
        one list, never of one number: the code that Spark generates is the same for each batch then, and compiled once."""
        came_true = [_NOWHERE, _NOWHERE - 1]
        for part in ranges:
            if part.decisions is not None:
                came_true += [part.partition << _OFFSET_BITS | offset for offset in part.decisions.offsets]
        listed = ", ".join(map(str, came_true))
        return self._of(self._frame.where(f"{_PLACE} IN ({listed})"), self._offsets)


def of_decisions(domain: Domain) -> Callable[[DataFrame], DataFrame]:
    """What makes lines of decisions: of what these write for the topics that have tables, as `read.Lines` makes them of records.
    `offset` is the place in the log. Its columns are made once, and not for each batch.
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
        return to_lines(writes.select(*origin, place, *fields))

    return made


def _small(bytes_in_all: int, offsets: int) -> int:
    """How large each of so many records may be, to be no more than that together. A power of two: it is a part of the code that
    Spark generates, which is compiled anew for another one.
    """
    return 1 << max(1, bytes_in_all // max(1, offsets)).bit_length() - 1


def _summaries(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs on the driver, or in an executor."""
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
