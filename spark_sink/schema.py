"""Migrations: sql/schema/*.sql in order of name, each applied once, each in its own transaction."""

import hashlib
from pathlib import Path

from onefold.spark_sink.errors import Misconfigured
from onefold.spark_sink.postgres import Connection, connect, transaction

# Any number will do, as long as every sink takes the same one.
_MIGRATION_LOCK = 7_316_421_001

_BOOKKEEPING = """
CREATE SCHEMA IF NOT EXISTS onefold;
CREATE TABLE IF NOT EXISTS onefold.migration (
    file       text        PRIMARY KEY,
    sha256     text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""


def migrate(dsn: str, sql_root: Path) -> list[str]:
    """Apply what is new under `sql_root`/schema and return those file names.

    Safe to call from several processes at once: an advisory lock lets one work and the others find it done. Raises
    Misconfigured when a file changed after it was applied, psycopg.Error when Postgres or the SQL fails.
    """
    connection = connect(dsn, "migrate")
    try:
        connection.execute("SELECT pg_advisory_lock(%s)", (_MIGRATION_LOCK,))
        connection.execute(_BOOKKEEPING)
        applied: dict[str, str] = dict(connection.execute("SELECT file, sha256 FROM onefold.migration").fetchall())
        return [path.name for path in sorted((sql_root / "schema").glob("*.sql")) if _apply(connection, path, applied)]
    finally:
        connection.close()


def _apply(connection: Connection, path: Path, applied: dict[str, str]) -> bool:
    text = path.read_bytes()
    checksum = hashlib.sha256(text).hexdigest()
    if applied.get(path.name) == checksum:
        return False
    if path.name in applied:
        raise Misconfigured(
            f"sql/schema/{path.name} was changed after it was applied to this database: "
            "restore it, and put the change into a new file"
        )
    with transaction(connection):
        connection.execute(text)
        connection.execute("INSERT INTO onefold.migration (file, sha256) VALUES (%s, %s)", (path.name, checksum))
    return True
