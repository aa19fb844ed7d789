"""Reduces, reads and trims the rows of a micro-batch in Spark."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from onefold.spark_sink.landing.ledger import Partition
from onefold.spark_sink.query_config import QueryConfig
from onefold.spark_sink.spark.read import record_column

# One task reduces a batch with at most this many offsets, to avoid exchanges between tasks. A batch without reductions needs no
# exchange, and one task would be slower, because the task would read the partitions one after the other.
ONE_TASK_OFFSETS = 25_000


_NO_RECORDS = (("", 0, 0), ("", 0, 1))


class SparkRows:
    """The rows of a micro-batch.

    Args:
        lines: the batch's lines from `read.stream`.
        reduced: converts the lines to rows for the staging tables.
        parallelism: the number of cores of the local machine, or of the executors.
        one_task: whether one task reduces a small batch. Only on the local machine, because a cluster would use only one
            executor.
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
        """Hold the records in memory, and the excess on disk, if more than one Spark job reads the records."""
        lines = self._but_failing(self._lines)
        if not (reread or self._plan.domain.reductions):
            yield self._of(lines, offsets)
            return
        # coalesced before `persist`, so that each query has the reduced number of tasks
        lines = lines.coalesce(self._tasks(offsets)).persist()
        try:
            yield self._of(lines, offsets)
        finally:
            lines.unpersist()

    def within(self, spans: Mapping[Partition, range], offsets: int) -> Self:
        """The rows reduced again from only the records in the spans."""
        return self._of(within(self._lines, spans), offsets)

    def only(self, records: Sequence[tuple[str, int, int]]) -> Self:
        """The rows of the given records.

        The filter has at least two records, because Spark generates the same code for all such filters, and compiles the code
        once.
        """
        listed = ", ".join(f"'{topic}/{partition}/{offset}'" for topic, partition, offset in [*records, *_NO_RECORDS])
        return self._of(self._lines.where(f"concat_ws('/', topic, partition, offset) IN ({listed})"), len(records))

    def bytes(self) -> int:
        """The size of all lines in bytes. Runs one Spark job."""
        return int(
            self._lines.selectExpr("coalesce(sum(octet_length(line)), 0) AS bytes").toArrow()["bytes"][0].as_py()
        )

    def reduced_places(self) -> pa.Table:
        """The places of the records without a line. Runs one Spark job."""
        domain = self._plan.domain
        reads = [sf.when(sf.col(record_column(domain, topic)).isNotNull(), topic) for topic in domain.reduced]
        of = sf.coalesce(*reads, sf.lit(None)).alias("reads")
        return self._lines.where("line IS NULL").select("topic", "partition", "offset", "at_ms", of).toArrow()

    def to_arrow(self) -> pa.Table:
        """All rows, on the driver. Runs one Spark job."""
        return self._reduced(self._lines).coalesce(self._tasks(self._offsets)).toArrow()

    def _but_failing(self, lines: DataFrame) -> DataFrame:
        """Return `lines`, with failing tasks if a test or failpoint requests the failure."""
        if not self._plan.map_fails():
            return lines
        return lines.where(sf.raise_error(sf.lit("a failure of map was injected")).isNull())

    def _of(self, lines: DataFrame, offsets: int) -> Self:
        return type(self)(self._plan, lines, self._reduced, self._parallelism, self._one_task, offsets)

    def _tasks(self, offsets: int) -> int:
        """One task per core instead of one per topic and partition, because tasks dominate the cost of a small batch."""
        alone = self._one_task and self._plan.domain.reductions and offsets <= ONE_TASK_OFFSETS
        return 1 if alone else self._parallelism


def within(frame: DataFrame, spans: Mapping[Partition, range]) -> DataFrame:
    """Return the records of `frame` with an offset in the span of their partition."""
    keep = sf.lit(False)
    for (topic, partition), span in spans.items():
        here = (sf.col("topic") == topic) & (sf.col("partition") == partition)
        keep = keep | (here & (sf.col("offset") >= span.start) & (sf.col("offset") < span.stop))
    return frame.where(keep)
