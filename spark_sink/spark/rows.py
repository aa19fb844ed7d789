"""The rows of a micro-batch in Spark: reduced, read and trimmed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from onefold.spark_sink.landing.ledger import Partition
from onefold.spark_sink.query_config import QueryConfig
from onefold.spark_sink.spark.read import record_column

# Batches of at most this many offsets are reduced by one task: what a query adds up is in one place then, and nothing has
# to be exchanged. A batch that is not reduced has nothing to exchange: there one task only costs time, because it reads
# one partition after the other.
ONE_TASK_OFFSETS = 25_000


_NO_RECORDS = (("", 0, 0), ("", 0, 1))


class SparkRows:
    """The rows of a micro-batch.

    Args:
        lines: as `read.stream` gives them.
        reduced: makes rows to be staged of the lines.
        parallelism: the number of cores of this machine, or of the executors.
        one_task: whether one task reduces a small batch. Only on this machine: it would else be one executor's.
    """

    def __init__(
        self,
        plan: QueryConfig,
        lines: DataFrame,
        reduced: Callable[[DataFrame], DataFrame],
        parallelism: int,
        one_task: bool,
        offsets: int = 0,
    ) -> None:
        self._plan = plan
        self._lines = lines
        self._reduced = reduced
        self._parallelism = parallelism
        self._one_task = one_task
        self._offsets = offsets

    @contextmanager
    def held(self, offsets: int, reread: bool) -> Iterator[Self]:
        """The records are in memory meanwhile, and on disk what does not fit, if more than one job of Spark reads them."""
        lines = self._but_failing(self._lines)
        if not (reread or self._plan.domain.reductions):
            yield self._of(lines, offsets)
            return
        # coalesced before they are kept, each of the queries has that many tasks
        lines = lines.coalesce(self._tasks(offsets)).persist()
        try:
            yield self._of(lines, offsets)
        finally:
            lines.unpersist()

    def within(self, spans: Mapping[Partition, range], offsets: int) -> Self:
        """Reduced again, from these records alone."""
        return self._of(within(self._lines, spans), offsets)

    def only(self, records: Sequence[tuple[str, int, int]]) -> Self:
        """In a list, never of one record: the code that Spark generates is the same for each such list, and compiled once."""
        listed = ", ".join(f"'{topic}/{partition}/{offset}'" for topic, partition, offset in [*records, *_NO_RECORDS])
        return self._of(self._lines.where(f"concat_ws('/', topic, partition, offset) IN ({listed})"), len(records))

    def bytes(self) -> int:
        """One Spark job."""
        return int(
            self._lines.selectExpr("coalesce(sum(octet_length(line)), 0) AS bytes").toArrow()["bytes"][0].as_py()
        )

    def reduced_places(self) -> pa.Table:
        """One Spark job: these records have no line."""
        domain = self._plan.domain
        reads = [sf.when(sf.col(record_column(domain, topic)).isNotNull(), topic) for topic in domain.reduced]
        of = sf.coalesce(*reads, sf.lit(None)).alias("reads")
        return self._lines.where("line IS NULL").select("topic", "partition", "offset", "at_ms", of).toArrow()

    def to_arrow(self) -> pa.Table:
        """One Spark job, its rows on the driver."""
        return self._reduced(self._lines).coalesce(self._tasks(self._offsets)).toArrow()

    def _but_failing(self, lines: DataFrame) -> DataFrame:
        """`lines`, whose tasks fail when that is asked for."""
        if not self._plan.map_fails():
            return lines
        return lines.where(sf.raise_error(sf.lit("a failure of map was injected")).isNull())

    def _of(self, lines: DataFrame, offsets: int) -> Self:
        return type(self)(self._plan, lines, self._reduced, self._parallelism, self._one_task, offsets)

    def _tasks(self, offsets: int) -> int:
        """One per core instead of one per topic and partition: a small batch is mostly the cost of its tasks."""
        alone = self._one_task and self._plan.domain.reductions and offsets <= ONE_TASK_OFFSETS
        return 1 if alone else self._parallelism


def within(frame: DataFrame, spans: Mapping[Partition, range]) -> DataFrame:
    """The records of `frame` whose offset lies in the span of their partition."""
    keep = sf.lit(False)
    for (topic, partition), span in spans.items():
        here = (sf.col("topic") == topic) & (sf.col("partition") == partition)
        keep = keep | (here & (sf.col("offset") >= span.start) & (sf.col("offset") < span.stop))
    return frame.where(keep)
