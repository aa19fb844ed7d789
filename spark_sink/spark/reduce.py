"""Reduces the records of a batch to a few rows, with the queries in sql/reduce.

A query reads from `:batch`, with the schema's fields and `topic`, `partition`, `offset` of every record of its topic in the
batch. The resulting rows represent the whole batch. If another sink has written a part of the batch, the sink cannot trim the
rows, and must reduce the remaining records again.

Spark reads the batch once, and holds the records for all queries.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from onefold import avro_types, names
from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured
from onefold.spark_sink import contracts
from onefold.spark_sink.contracts import ORIGIN, Domain, Reduction, Target, read_target
from onefold.spark_sink.errors import sentence
from onefold.spark_sink.spark import read

_POSTGRES_TYPES = {kind.spark: kind.postgres for kind in avro_types.TYPES.values() if kind.spark}
# The common columns of all rows for the staging tables. A row without a target only marks the last record of a partition.
_SHAPE = {
    "target": "string",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "fingerprint": "bigint",
    "at_ms": "bigint",
}

_NOTHING = "onefold_nothing"


def targets(spark: SparkSession, domain: Domain, sql_root: Path) -> dict[str, Target]:
    """Return a target for each reduction of `domain`, with the result columns of the query.

    Raises:
        Misconfigured: Spark cannot analyze the query, or a column has an unsupported type. The message names the file.
    """
    found = {}
    for reduction in domain.reductions:
        kinds = _kinds(spark, domain, reduction)
        _check_names(reduction, [name for name, _ in kinds])
        columns = tuple(contracts.StagingColumn(name, _postgres_type(reduction, name, kind)) for name, kind in kinds)
        found[reduction.name] = read_target(reduction.name, columns, sql_root, reduction.topic)
    return found


def _check_names(reduction: Reduction, columns: list[str]) -> None:
    where = f"sql/reduce/{reduction.name}.sql"
    for name in columns:
        if fault := names.fault_of_column(name, ()):
            raise Misconfigured(Code.SQL_WRONG, f"{where}: column {name!r} {fault}: give the column another name")
    if twice := names.alike(columns) or next(((n, n) for n in columns if columns.count(n) > 1), None):
        raise Misconfigured(
            Code.SQL_WRONG, f"{where}: columns {twice[0]!r} and {twice[1]!r} are one to Spark: rename one of them"
        )


def _kinds(spark: SparkSession, domain: Domain, reduction: Reduction) -> list[tuple[str, str]]:
    origin = [sf.lit(None).cast(_SHAPE[column.name]).alias(column.name) for column in ORIGIN]
    nothing = read.no_records(spark, domain.contracts[reduction.topic]).select("*", *origin)
    nothing.createOrReplaceTempView(_NOTHING)
    try:
        return spark.sql(f"SELECT * FROM {_over(reduction, f'TABLE {_NOTHING}')}").dtypes
    except PySparkException as error:
        raise Misconfigured(
            Code.SQL_WRONG, f"sql/reduce/{reduction.name}.sql does not work: {sentence(error)}"
        ) from error


def reducer(domain: Domain, all_targets: Mapping[str, Target]) -> Callable[[DataFrame], DataFrame]:
    """Return a function from a batch of `read.stream` to rows for the staging tables, including the rows of reductions.

    Two threads may call the function at the same time, each with a separate batch. The function uses one statement for all
    batches, because Spark would analyze each step of a DataFrame built per batch.
    """
    if not domain.reductions:
        return lambda frame: frame
    view = f"onefold_{domain.name}"
    reductions = (_rows(view, domain, reduction, all_targets[reduction.name]) for reduction in domain.reductions)
    statement = "\nUNION ALL\n".join([_lines(view), _marks(view), *reductions])

    # `sql` resolves the view during the call. Afterwards, another thread may replace the view.
    naming = threading.Lock()

    def reduced(frame: DataFrame) -> DataFrame:
        with naming:
            frame.createOrReplaceTempView(view)
            return frame.sparkSession.sql(statement)

    return reduced


def _lines(view: str) -> str:
    """The query for the lines of single records. Its column names are the names of the whole statement."""
    return f"SELECT {', '.join(_SHAPE)}, line FROM `{view}` WHERE line IS NOT NULL"


def _marks(view: str) -> str:
    """The query for the last record and the oldest timestamp of each partition, over the records without a line."""
    last = "max(offset), max_by(fingerprint, offset), min(at_ms)"
    return (
        f"SELECT cast(NULL AS string), topic, partition, {last}, cast(NULL AS string)"
        f" FROM `{view}` WHERE line IS NULL GROUP BY topic, partition"
    )


def _rows(view: str, domain: Domain, reduction: Reduction, target: Target) -> str:
    """The query for the lines of a reduction."""
    record, origin = read.record_column(domain, reduction.topic), ", ".join(column.name for column in ORIGIN)
    batch = f"SELECT {record}.*, {origin} FROM `{view}` WHERE {record} IS NOT NULL"
    line = read.csv_line([read.cell(f"`{column.name}`", column) for column in target.columns])
    nothing = ", ".join(f"cast(NULL AS {kind})" for name, kind in _SHAPE.items() if name != "target")
    return f"SELECT '{target.name}', {nothing}, {line} FROM {_over(reduction, batch)}"


def _over(reduction: Reduction, batch: str) -> str:
    """Return the query with `batch` in place of `:batch`, and a final newline, because the query may end in a comment."""
    return f"({f'({batch})'.join(reduction.query)}\n)"


def _postgres_type(reduction: Reduction, name: str, kind: str) -> str:
    plain = kind.partition("(")[0]  # the type of a decimal has the digits in brackets
    if plain not in _POSTGRES_TYPES:
        raise Misconfigured(
            Code.SQL_WRONG, f"sql/reduce/{reduction.name}.sql gives {name} as {kind}, which the sink cannot write"
        )
    return _POSTGRES_TYPES[plain]
