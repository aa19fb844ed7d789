"""Map and reduce: the records of a batch -> the few rows that they add up to, by the queries in sql/reduce.

A query reads from `:batch`, which has the contract's fields and `topic`, `partition`, `offset` of every record of its
topic in this batch. What Spark makes of it, partial sums in the executors and one exchange, is Spark's business. Rows
that it gives stand for the batch as a whole. So a batch of which a part was landed already can not be trimmed after
this: it has to be reduced again, from the records that are left.

The batch is read once and kept while its queries run.
"""

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark_sink import read
from spark_sink.contracts import ORIGIN, Column, Domain, Reduction, Target, read_target
from spark_sink.errors import Misconfigured, sentence
from spark_sink.ledger import Batch, Partition

_POSTGRES_TYPES = {
    "bigint": "bigint",
    "int": "integer",
    "string": "text",
    "boolean": "boolean",
    "double": "double precision",
    "binary": "bytea",
    "timestamp": "timestamp with time zone",
    "date": "date",
}
# What all rows to be staged have in common. A row without a target only marks how far a partition goes.
_SHAPE = {"target": "string", "topic": "string", "partition": "int", "offset": "bigint", "fingerprint": "bigint"}


def targets(spark: SparkSession, domain: Domain, sql_root: Path, notes: Path | None = None) -> dict[str, Target]:
    """A target for each reduction of `domain`, with the columns that its query gives.

    Asking Spark for them is a third of a cold start. So the answers are noted in the folder `notes`, each under its
    question; a note that is missing or not what it should be is made anew.

    Raises Misconfigured, naming the file, when Spark can not read the query or Postgres has no such type.
    """
    found = {}
    for reduction in domain.reductions:
        note = notes / f"{_question(spark, domain, reduction)}.json" if notes else None
        kinds = _noted(note)
        if kinds is None:
            kinds = _kinds(spark, domain, reduction)
            _write(note, kinds)
        columns = tuple(Column(name, _postgres_type(reduction, name, kind)) for name, kind in kinds)
        found[reduction.name] = read_target(reduction.name, columns, sql_root, reduced=True)
    return found


def _kinds(spark: SparkSession, domain: Domain, reduction: Reduction) -> list[tuple[str, str]]:
    origin = [sf.lit(None).cast(_SHAPE[column.name]).alias(column.name) for column in ORIGIN]
    nothing = read.no_records(spark, domain.contracts[reduction.topic]).select("*", *origin)
    try:
        return _ask(nothing, reduction).dtypes
    except PySparkException as error:
        raise Misconfigured(f"sql/reduce/{reduction.name}.sql does not work: {sentence(error)}") from error


def _question(spark: SparkSession, domain: Domain, reduction: Reduction) -> str:
    asked = [spark.version, _SHAPE, domain.contracts[reduction.topic].schema, reduction.query]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _noted(note: Path | None) -> list[tuple[str, str]] | None:
    if note is None:
        return None
    try:
        kinds = list(json.loads(note.read_text()).items())
    except (OSError, ValueError, AttributeError):
        return None
    return kinds if kinds and all(isinstance(kind, str) for _, kind in kinds) else None


def _write(note: Path | None, kinds: list[tuple[str, str]]) -> None:
    if note is None:
        return
    with suppress(OSError):  # it only saves time
        note.parent.mkdir(parents=True, exist_ok=True)
        draft = note.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(dict(kinds)))
        draft.replace(note)


def reduced(frame: DataFrame, domain: Domain, all_targets: dict[str, Target]) -> DataFrame:
    """The batch as `read.stream` gives it -> rows to be staged, those of reductions included."""
    has_line = sf.col("line").isNotNull()
    rows = frame.where(has_line).select(*_SHAPE, "line").unionByName(_marks(frame.where(~has_line)))
    for reduction in domain.reductions:
        record = read.record_column(domain, reduction.topic)
        records = frame.where((sf.col("topic") == reduction.topic) & ~has_line)
        batch = records.select(f"{record}.*", *(column.name for column in ORIGIN))
        rows = rows.unionByName(_lines(_ask(batch, reduction), all_targets[reduction.name]))
    return rows


def trimmed(frame: DataFrame, floors: dict[Partition, int]) -> DataFrame:
    """`frame` without the records below their partition's floor: those were landed by somebody else."""
    keep = sf.lit(False)
    for (topic, partition), floor in floors.items():
        here = (sf.col("topic") == topic) & (sf.col("partition") == partition)
        keep = keep | (here & (sf.col("offset") >= floor))
    return frame.where(keep)


def rest(batch: Batch, floors: dict[Partition, int]) -> Batch:
    """The part of `batch` at and above the floors."""
    spans = [replace(span, start=max(span.start, floors[span.key]), last=None) for span in batch.spans]
    return replace(batch, spans=tuple(span for span in spans if span.start < span.end))


def _ask(batch: DataFrame, reduction: Reduction) -> DataFrame:
    view = "onefold_" + reduction.name.replace(".", "_")
    batch.createOrReplaceTempView(view)
    return batch.sparkSession.sql(view.join(reduction.query))


def _lines(rows: DataFrame, target: Target) -> DataFrame:
    line = read.csv_line([read.cell(f"`{column.name}`", column.postgres_type) for column in target.columns])
    nothing = [sf.lit(None).cast(kind).alias(name) for name, kind in _SHAPE.items() if name != "target"]
    return rows.select(sf.lit(target.name).alias("target"), *nothing, line.alias("line"))


def _marks(records: DataFrame) -> DataFrame:
    """The last record of each partition."""
    last = [sf.max("offset").alias("offset"), sf.max_by("fingerprint", "offset").alias("fingerprint")]
    marks = records.groupBy("topic", "partition").agg(*last)
    return marks.select(
        sf.lit(None).cast("string").alias("target"), *list(_SHAPE)[1:], sf.lit(None).cast("string").alias("line")
    )


def _postgres_type(reduction: Reduction, name: str, kind: str) -> str:
    if kind.startswith("decimal"):
        return "numeric"
    if kind not in _POSTGRES_TYPES:
        raise Misconfigured(f"sql/reduce/{reduction.name}.sql gives {name} as {kind}, which the sink cannot land")
    return _POSTGRES_TYPES[kind]
