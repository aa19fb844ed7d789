"""The streaming query of one domain: it starts from the positions in Postgres, as often as necessary.

There is one recovery for everything that can go wrong with a batch, from a failed task to a lost COMMIT answer to a
deleted checkpoint: end the query, and start it again from what Postgres says. The batch that was under way has
happened or has not; the compare-and-swap finds out. Only a transaction that failed by itself, as in a deadlock, is tried
once more before that (`batches`), by the same compare-and-swap.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial

import psycopg
from psycopg import sql
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onefold import pipeline_lock
from onefold.error_codes import Code, CodedError
from onefold.postgres import HeldUp, Unfit, unopened
from onefold.processor.core.errors import Misconfigured, Retriable
from onefold.spark_sink.contracts import ENGINE_SQL
from onefold.spark_sink.errors import Rewind, Verdict, sentence, verdict
from onefold.spark_sink.landing import identity, known_contracts, ledger
from onefold.spark_sink.landing.batches import Batches
from onefold.spark_sink.landing.isolate import Bound
from onefold.spark_sink.landing.land import merge
from onefold.spark_sink.landing.ledger import Partition
from onefold.spark_sink.landing.protocols import Topics
from onefold.spark_sink.landing.stage import Stage, open_stage
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.postgres.connection import Connection, connect
from onefold.spark_sink.postgres.schema import ENGINE, migrate
from onefold.spark_sink.spark import checkpoint, read, reduce
from onefold.spark_sink.spark.options import is_local
from onefold.spark_sink.spark.rows import SparkRows
from onefold.spark_sink.threads import Threads
from onefold.telemetry import QUERY_STARTS

# The supervisor waits for the answer, and keeps the status fresh.
_AUDIT_S = 2.0


class Query:
    """Start it; ask for its `failure` now and then; start it again.

    Args:
        spark: gives the session; raises Retriable while there is none. A query fails when its session is no longer that one.
        topics: the sink's, not closed here.
        renewed: gives the plan with the logins that count now, at each start.
    """

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        plan: Plan,
        topics: Topics,
        bound: Bound | None = None,
        renewed: Callable[[Plan], Plan] = lambda plan: plan,
    ) -> None:
        self._spark, self._renewed = spark, renewed
        self._plan, self._topics = plan, topics
        self._query: StreamingQuery | None = None
        self._session: SparkSession | None = None
        self._batches: Batches | None = None
        self._held = ExitStack()
        self._bound = bound or Bound()

    @property
    def name(self) -> str:
        """The domain."""
        return self._plan.domain.name

    @property
    def landed(self) -> int:
        """How many offsets this query has landed since its last start."""
        return self._batches.landed if self._batches else 0

    @property
    def reached(self) -> dict[Partition, int]:
        """Up to which offset of each partition everything has landed; {} before the first start."""
        return self._batches.reached if self._batches else {}

    @property
    def reads(self) -> list[str]:
        """The topics that it lands."""
        return self._plan.reads

    def start(self) -> None:
        """Begin where Postgres says. Raises Retriable, Refused or Misconfigured, with nothing new left running."""
        try:
            self.stop()
        except (PySparkException, Py4JError) as error:
            raise Retriable(Code.SPARK_QUERY, "Spark does not end the query; it is asked again") from error
        self._plan = self._renewed(self._plan)
        try:
            with ExitStack() as held:
                self._begin(held)
                self._held = held.pop_all()
        except Unfit as error:
            raise Misconfigured(Code.POSTGRES_UNFIT, str(error)) from error
        except HeldUp as error:
            raise Retriable(Code.POSTGRES_HELD_UP, str(error)) from error
        except psycopg.Error as error:
            if error.sqlstate is None and verdict(error) is Verdict.RETRY:
                code = error.code if isinstance(error, CodedError) else Code.POSTGRES_SILENT
                raise Retriable(code, f"Postgres {unopened(error)}: {sentence(error)}") from error
            if verdict(error) in (Verdict.RETRY, Verdict.UNKNOWN):
                raise Retriable(Code.POSTGRES_REFUSES, f"Postgres refuses to begin: {sentence(error)}") from error
            raise Misconfigured(
                Code.SQL_WRONG, f"Postgres refuses a statement of sql/ or of the sink's own schemas: {sentence(error)}"
            ) from error
        except (PySparkException, Py4JError) as error:
            raise Retriable(Code.SPARK_QUERY, f"Spark cannot read the topics: {sentence(error)}") from error

    def failure(self) -> BaseException | None:
        """Why nothing further lands: the query has ended, or will; None while it is healthy."""
        if self._query is None or self._batches is None:
            return Retriable(Code.SPARK_QUERY, "not started yet")
        try:
            if self._session is not self._spark():
                return Retriable(Code.SPARK_QUERY, "Spark has a new session")
        except Retriable as error:
            return error
        active = self._query.isActive  # asked first: whatever ends it is noted before
        # our own error first: Spark's is a wrapper around it, and of one in landing it hears only at the next batch
        if self._batches.failure is not None or active:
            return self._batches.failure
        return self._query.exception() or Retriable(Code.SPARK_QUERY, "Spark ended the query")

    def displaced(self) -> Rewind | None:
        """Why the query must go back although no batch came to notice it: Postgres holds less than it has landed.

        That is how a restored backup looks while the topics are quiet.
        """
        if self._batches is None:
            return None
        reached = self._batches.reached
        with closing(connect(self._plan.postgres_dsn, self._plan.writer, patience_s=_AUDIT_S)) as connection:
            stored = ledger.positions(connection, self.name)
        for (topic, partition), offset in sorted(reached.items()):
            at = stored.get((topic, partition))
            if at is None or at.next_offset < offset:
                needs = "nothing" if at is None else f"everything below {at.next_offset}"
                return Rewind(
                    Code.POSITIONS_MOVED,
                    f"{topic}/{partition} was written below {offset}, but Postgres holds {needs}: going back",
                )
        return None

    def stop(self) -> None:
        """End the query and let go of what it held. A batch that is being landed is rolled back, whatever ended the query:
        it is landed at the next start. What was staged beside it is lost."""
        self._held.close()
        try:
            if self._query is not None:
                self._query.stop()
        finally:
            if self._batches is not None:
                self._batches.close()
        self._query = self._batches = None

    def _begin(self, held: ExitStack) -> None:
        plan, spark = self._plan, self._spark()
        # closing, not `with connection`: that would commit what a batch has done so far, were it under way
        said = partial(plan.held, self.name)
        connection = held.enter_context(closing(connect(plan.postgres_dsn, plan.writer, held=said)))
        if not pipeline_lock.share(connection, self.name):
            raise Retriable(Code.RESET_INCOMPLETE, f"{self.name} is being reset: `onefold reset` is running")
        migrate(plan.postgres_dsn, ENGINE, ENGINE_SQL)
        migrate(plan.postgres_dsn, self.name, plan.sql_root)
        reader = held.enter_context(closing(connect(plan.postgres_dsn, plan.writer, held=said)))
        reduced = reduce.targets(spark, plan.domain, plan.sql_root)
        stage = open_stage(connection, {**plan.domain.targets, **reduced})
        _rehearse(connection, stage)
        start, ids = identity.recognise(connection, self.name, plan.writer, self._topics, plan.reads)
        known_contracts.recognise(connection, plan.domain)
        plan.guarantee(self.name, plan.reads, connection)
        reducer = reduce.reducer(plan.domain, stage.targets)
        folder = checkpoint.fresh(plan.checkpoint_root, plan.writer, plan.domain.name)
        lines = read.stream(spark, plan.domain, plan.java_options, start, plan.max_offsets)
        context, one_task = spark.sparkContext, is_local(spark.sparkContext.master or "")
        ends = partial(checkpoint.ends, folder)
        self._batches = batches = Batches(
            plan, connection, reader, self._topics, stage, start, ids, ends, Threads(), self._bound
        )

        def on_batch(batch: DataFrame, batch_id: int) -> None:
            # A cluster may have more executors now.
            rows = SparkRows(plan, batch, reducer, context.defaultParallelism, one_task)
            batches.on_batch(rows, batch_id)

        # The outcome of a COMMIT is known from its answer alone: one that waits for a standby is waited for.
        connection.patience_s = reader.patience_s = None
        every = f"{round(plan.interval_s * 1000)} milliseconds"
        writer = lines.writeStream.foreachBatch(on_batch).trigger(processingTime=every)
        self._session = spark
        self._query = writer.option("checkpointLocation", folder.as_uri()).start()
        plan.telemetry.add(QUERY_STARTS, domain=self.name)


def _rehearse(connection: Connection, stage: Stage) -> None:
    """Run every merge on an empty stage: a mistake in one is found now, and by name."""
    for name, target in stage.targets.items():
        connection.execute("BEGIN")
        try:
            # in brackets, as `land` has it: before PostgreSQL 16 that takes an alias
            connection.execute(merge(target, sql.SQL("(SELECT * FROM {})").format(stage.table(name))))
        except psycopg.Error as error:
            if verdict(error) in (Verdict.RETRY, Verdict.UNKNOWN):
                raise
            raise Misconfigured(Code.SQL_WRONG, f"sql/merge/{name}.sql does not work: {sentence(error)}") from error
        finally:
            if not connection.closed:
                connection.execute("ROLLBACK")
