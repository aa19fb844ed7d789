"""The write of a batch and its offsets in one Postgres transaction, without Spark.

    BEGIN
      compare-and-swap of every partition     Is the batch written already? Does the batch continue the stored positions?
      fill the staging tables
      merge every table                       Only rows at or above the stored offset. Reduced rows only if no offset of the
                                              batch is below.
      insert into the batch history           For people. The protocol does not read the history.
    COMMIT                                    All or nothing.

After a crash at any point, the next compare-and-swap detects whether the transaction was committed.
"""

from collections.abc import Callable, Mapping

from psycopg import sql

from onefold.spark_sink.contracts import Target
from onefold.spark_sink.errors import Overlap
from onefold.spark_sink.landing import batch_history, ledger
from onefold.spark_sink.landing.ledger import BatchRange, Partition
from onefold.spark_sink.landing.staging_tables import Staged
from onefold.spark_sink.postgres.connection import Connection, transaction

Step = Callable[[str], None]


def land(
    connection: Connection,
    batch: BatchRange,
    staged: Staged,
    targets: Mapping[str, Target],
    step: Step,
    merged: Callable[[int], None] = lambda rows: None,
) -> bool:
    """Write `batch`. False: this sink or another sink has written the whole batch before.

    After an exception, the transaction is rolled back, unless the connection was lost during COMMIT. Then call again to detect
    the outcome.

    Args:
        merged: called after the commit with the number of rows changed by the merges.

    Raises:
        Rewind: the batch does not continue the stored positions.
        Overlap: a part of a batch with reduced rows was written before.
        psycopg.Error: Postgres fails.
    """
    step("sink.before_cas")
    rows = 0
    with transaction(connection):
        start_offsets = ledger.advance(connection, batch)
        step("sink.after_cas")
        if start_offsets is not None:
            if any(target.reduced for target in targets.values()) and ledger.overlaps(batch, start_offsets):
                raise Overlap(start_offsets)
            since = {}
            if ledger.overlaps(batch, start_offsets):
                since = start_offsets
            rows = _apply(connection, staged, targets, since, step)
            batch_history.add(connection, batch, start_offsets)
        step("sink.before_commit")
    step("sink.after_commit")
    merged(rows)
    return start_offsets is not None


def _apply(
    connection: Connection,
    staged: Staged,
    targets: Mapping[str, Target],
    since: dict[Partition, int],
    step: Step,
) -> int:
    step("sink.before_copy")
    staged.fill(connection)
    step("sink.after_copy")
    step("sink.before_merge")
    rows = 0
    for name in staged.targets:
        relation = staged.relation(name)
        whole = sql.SQL("({})").format(relation)
        trimmed = above(relation, since) if since and not targets[name].reduced else whole
        done = connection.execute(merge(targets[name], trimmed))
        rows += max(0, done.rowcount)
    step("sink.after_merge")
    return rows


def above(relation: sql.Composable, since: dict[Partition, int]) -> sql.Composable:
    """Return `relation` without the rows below the offset `since` of their partition. Another sink has written those rows."""
    keys = sorted(since)
    return sql.SQL(
        "(SELECT staged.* FROM ({}) AS staged"
        " JOIN unnest({}::text[], {}::integer[], {}::bigint[]) AS landed(topic, partition, until)"
        ' ON staged.topic = landed.topic AND staged.partition = landed.partition AND staged."offset" >= landed.until)'
    ).format(
        relation,
        sql.Literal([topic for topic, _ in keys]),
        sql.Literal([partition for _, partition in keys]),
        sql.Literal([since[key] for key in keys]),
    )


def merge(target: Target, relation: sql.Composable) -> sql.Composed:
    """Return the merge statement of `target` with `relation` in place of `:stage`."""
    statement: list[sql.Composable] = [sql.SQL(target.merge[0])]
    for piece in target.merge[1:]:
        statement += [relation, sql.SQL(piece)]
    return sql.Composed(statement)
