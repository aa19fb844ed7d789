"""The PostgreSQL part of a reset: empty the tables of a pipeline's merges, and forget positions and finished jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from onefold import postgres
from onefold.config.errors import UserError, of_postgres
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED
from onefold.operate import merge_sql, pipelines
from onefold.spark_sink.landing import known_schemas, ledger

# A table with a reader's lock for this time is reported as in use.
_LOCK_TIMEOUT = "10s"
# The tables of a schema; and an object by name, outside the engine's schema, with whether it is a table.
_TABLES = "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'p')"
_NAMED = (
    "SELECT oid::regclass::text, relkind IN ('r', 'p') FROM pg_class"
    " WHERE oid = to_regclass(%s) AND relnamespace IS DISTINCT FROM to_regnamespace('onefold')"
)
# Foreign keys of other tables on the given tables: PostgreSQL refuses TRUNCATE because of a foreign key.
_HELD = (
    "SELECT conname, conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint WHERE contype = 'f'"
    " AND conparentid = 0 AND confrelid = ANY(%(tables)s::regclass[]) AND conrelid <> ALL(%(tables)s::regclass[])"
    " ORDER BY 1, 2"
)
_COUNTS = (
    "SELECT queue, (SELECT count(*) FROM onefold.pending AS p WHERE p.queue = asked.queue),"
    " (SELECT count(*) FROM onefold.done AS d WHERE d.queue = asked.queue) FROM unnest(%s::text[]) AS asked (queue)"
)


def of_schema(connection: psycopg.Connection[Any], name: str) -> set[str]:
    """All tables of a pipeline's schema."""
    return {table for (table,) in connection.execute(_TABLES, (name,)).fetchall()}


def written(connection: psycopg.Connection[Any], name: str) -> dict[str, int]:
    """The tables that a pipeline's merges write to, with their numbers of rows. Raises UserError (exit code 3) if a table
    cannot be emptied.
    """
    found = []
    for written_to in merge_sql.written(pipelines.found()[name]):
        for table, is_table in connection.execute(_NAMED, (written_to,)).fetchall():
            if not is_table:
                raise UserError(
                    Code.SQL_WRONG,
                    f"{table} is a view, and a reset cannot tell which table a merge of {name} writes through it",
                    "Name the table itself in sql/merge.",
                    REFUSED,
                )
            found.append(table)
    for key, holder, held in connection.execute(_HELD, {"tables": found}).fetchall():
        raise UserError(
            Code.FOREIGN_KEY,
            f"{held} cannot be emptied: the table {holder} refers to it by its foreign key {key}",
            f"ALTER TABLE {holder} DROP CONSTRAINT {key}, ask again, and add it when the tables are filled again.",
            REFUSED,
        )
    return {table: _rows(connection, table) for table in dict.fromkeys(found)}


def jobs(connection: psycopg.Connection[Any], queues: Collection[str]) -> dict[str, tuple[int, int]]:
    """The numbers of pending and finished jobs by queue."""
    if not _is_there(connection, "onefold.done"):
        return dict.fromkeys(queues, (0, 0))
    counted = connection.execute(_COUNTS, (list(queues),)).fetchall()
    return {queue: (int(pending), int(done)) for queue, pending, done in counted}


def empty(connection: psycopg.Connection[Any], name: str, *, keep_tables: bool, queues: Collection[str]) -> None:
    """Empty the tables, and forget positions and finished jobs.

    Args:
        connection: in a transaction.
        keep_tables: leave rows and positions.
        queues: the queues of the jobs to forget.
    """
    connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
    tables: Mapping[str, int] = {} if keep_tables else written(connection, name)
    if tables:
        names = sql.SQL(", ").join(map(_identifier, tables))
        connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(names))
    # Else the database was never prepared.
    if _is_there(connection, "onefold.applied"):
        if not keep_tables:
            ledger.forget(connection, name)
        known_schemas.forget(connection, name)
        connection.execute("DELETE FROM onefold.verdict WHERE domain = %s", (name,))
    if queues and _is_there(connection, "onefold.done"):
        connection.execute("DELETE FROM onefold.pending WHERE queue = ANY(%s)", (list(queues),))
        connection.execute("DELETE FROM onefold.done WHERE queue = ANY(%s)", (list(queues),))


@contextmanager
def transaction(dsn: str, hint: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction on a new connection. Any error rolls back, and becomes one sentence."""
    try:
        with postgres.connect(dsn, "onefold reset", autocommit=False) as connection:
            yield connection
    except psycopg.Error as error:
        raise of_postgres(error, "PostgreSQL did not do it", hint) from None


def _is_there(connection: psycopg.Connection[Any], table: str) -> bool:
    return connection.execute("SELECT to_regclass(%s)", (table,)).fetchone() != (None,)


def _rows(connection: psycopg.Connection[Any], table: str) -> int:
    row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(_identifier(table))).fetchone()
    return int(row[0]) if row else 0


def _identifier(name: str) -> sql.Composable:
    # The text comes from regclass, quoted where needed, and is safe in a statement.
    return sql.SQL(name)
