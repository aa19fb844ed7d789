"""The streaming query of one pipeline. Every start begins at the positions in Postgres.

After every failure of a batch, for example a failed task, a lost response to COMMIT, or a deleted checkpoint, the supervisor
restarts the query from the positions in Postgres. The compare-and-swap detects whether the interrupted batch was committed.
Only after a transient failure of the transaction, for example a deadlock, `batches` first retries once with the same
compare-and-swap.
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
from onefold.spark_sink.errors import ErrorReaction, Rewind, sentence, verdict
from onefold.spark_sink.landing import known_schemas, ledger, topic_identity
from onefold.spark_sink.landing.batches import Batches
from onefold.spark_sink.landing.isolate import Bound
from onefold.spark_sink.landing.land import merge
from onefold.spark_sink.landing.ledger import Partition
from onefold.spark_sink.landing.protocols import TopicInfo
from onefold.spark_sink.landing.staging_tables import StagingTables, open_stage
from onefold.spark_sink.postgres.connection import Connection, connect
from onefold.spark_sink.postgres.schema import ENGINE, migrate
from onefold.spark_sink.query_config import QueryConfig
from onefold.spark_sink.spark import checkpoint, read, reduce
from onefold.spark_sink.spark.options import is_local
from onefold.spark_sink.spark.rows import SparkRows
from onefold.spark_sink.threads import Threads
from onefold.telemetry import QUERY_STARTS

# Short, because the supervisor waits for the response and must update the status.
_AUDIT_S = 2.0


class SinkQuery:
    """A streaming query with its connections. The supervisor checks `failure` at intervals, and restarts a failed query.

    Args:
        spark: returns the session. Raises Retriable without a session. A query fails after the change of the session.
        topics: shared with other queries; the query does not close them.
        renewed: called at each start; returns the plan with the current logins.
    """

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        plan: QueryConfig,
        topics: TopicInfo,
        bound: Bound | None = None,
        renewed: Callable[[QueryConfig], QueryConfig] = lambda plan: plan,
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
        """The pipeline."""
        return self._plan.domain.name

    @property
    def landed(self) -> int:
        """The number of offsets written since the last start."""
        return self._batches.landed if self._batches else 0

    @property
    def reached(self) -> dict[Partition, int]:
        """The offset per partition below which all records are written. {} before the first start."""
        return self._batches.reached if self._batches else {}

    @property
    def reads(self) -> list[str]:
        """The output topics of the query."""
        return self._plan.reads

    def start(self) -> None:
        """Start from the positions in Postgres. Raises Retriable, Refused or Misconfigured after closing new connections."""
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
            if error.sqlstate is None and verdict(error) is ErrorReaction.RETRY:
                code = error.code if isinstance(error, CodedError) else Code.POSTGRES_SILENT
                raise Retriable(code, f"Postgres {unopened(error)}: {sentence(error)}") from error
            if verdict(error) in (ErrorReaction.RETRY, ErrorReaction.UNKNOWN):
                raise Retriable(Code.POSTGRES_REFUSES, f"Postgres refuses to begin: {sentence(error)}") from error
            raise Misconfigured(
                Code.SQL_WRONG, f"Postgres refuses a statement of sql/ or of the sink's own schemas: {sentence(error)}"
            ) from error
        except (PySparkException, Py4JError) as error:
            raise Retriable(Code.SPARK_QUERY, f"Spark cannot read the topics: {sentence(error)}") from error

    def failure(self) -> BaseException | None:
        """The error that has ended, or will end, the query. None: the query is healthy."""
        if self._query is None or self._batches is None:
            return Retriable(Code.SPARK_QUERY, "not started yet")
        try:
            if self._session is not self._spark():
                return Retriable(Code.SPARK_QUERY, "Spark has a new session")
        except Retriable as error:
            return error
        active = self._query.isActive  # Read first: the batches record an error before the query ends.
        # The batches' error is first: Spark's error only wraps it, and Spark receives a write error only at the next batch.
        if self._batches.failure is not None or active:
            return self._batches.failure
        return self._query.exception() or Retriable(Code.SPARK_QUERY, "Spark ended the query")

    def displaced(self) -> Rewind | None:
        """The error if a position in Postgres is below the written offsets, else None.

        While the topics are idle, no batch detects a restored backup.
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
        """End the query and close its connections.

        Closing the connections rolls back the batch in progress and its staged rows. The next start reads the batch again.
        """
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
        # `closing` instead of `with connection`, which would commit the unfinished transaction of a batch
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
        start, ids = topic_identity.recognise(connection, self.name, plan.writer, self._topics, plan.reads)
        known_schemas.recognise(connection, plan.domain)
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
            # The number of executors of a cluster may have changed.
            rows = SparkRows(plan, batch, reducer, context.defaultParallelism, one_task)
            batches.on_batch(rows, batch_id)

        # Only the response to COMMIT gives the outcome, so the sink waits without a limit for a COMMIT blocked by a standby.
        connection.patience_s = reader.patience_s = None
        every = f"{round(plan.interval_s * 1000)} milliseconds"
        writer = lines.writeStream.foreachBatch(on_batch).trigger(processingTime=every)
        self._session = spark
        self._query = writer.option("checkpointLocation", folder.as_uri()).start()
        plan.telemetry.add(QUERY_STARTS, domain=self.name)


def _rehearse(connection: Connection, stage: StagingTables) -> None:
    """Run every merge on empty staging tables, to detect a faulty merge at the start, and report the file."""
    for name, target in stage.targets.items():
        connection.execute("BEGIN")
        try:
            # in brackets, as in `land`; before PostgreSQL 16, a subquery in FROM needs an alias
            connection.execute(merge(target, sql.SQL("(SELECT * FROM {})").format(stage.table(name))))
        except psycopg.Error as error:
            if verdict(error) in (ErrorReaction.RETRY, ErrorReaction.UNKNOWN):
                raise
            raise Misconfigured(Code.SQL_WRONG, f"sql/merge/{name}.sql does not work: {sentence(error)}") from error
        finally:
            if not connection.closed:
                connection.execute("ROLLBACK")
