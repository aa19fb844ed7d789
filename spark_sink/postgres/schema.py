"""Migrations: the files sql/schema/<pipeline>.<any name>.sql in order of name, each applied once, each in its own transaction.

The order of a pipeline's files is independent of other pipelines. The engine's files have the prefix ENGINE. The sink applies
the engine's files before the files of a pipeline.
"""

import hashlib
from pathlib import Path

import psycopg

from onefold.error_codes import Code, first_line
from onefold.processor.core.errors import Misconfigured, Refused
from onefold.rights import role_of
from onefold.spark_sink.postgres.connection import Connection, connect, transaction
from onefold.spark_sink.postgres.schema_files import files

ENGINE = "onefold"

# The newest supported version of the engine's tables. The version of a database is in onefold.version. An engine's file that
# raises the database's version requires a new number here. Version 2: an earlier sink has filled tables from a decision log.
KNOWN_VERSION = 2

# An arbitrary number, the same in all versions since 0.1.0.
_MIGRATION_LOCK = 7_316_421_001

# The table onefold.migration, written by 0.1.0, stays unchanged, because a downgrade to 0.1.0 needs the table.
_BOOKKEEPING = """
CREATE SCHEMA IF NOT EXISTS onefold;
CREATE TABLE IF NOT EXISTS onefold.applied (
    pipeline   text        NOT NULL,
    file       text        NOT NULL,
    sha256     text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, file)
)
"""


def migrate(dsn: str, pipeline: str, sql_root: Path) -> list[str]:
    """Apply the new files of `pipeline` in `sql_root`/schema, and return their names. Without new files, only read.

    Several processes may call this function at the same time, because an advisory lock admits one process at a time. A file
    applied by 0.1.0 under another name is recognized by its checksum, and not applied again.

    Raises:
        Refused: a newer Onefold has changed the engine's tables, or the role has no right to create a missing table.
        Misconfigured: a file has changed since its application, or the name of a file has no pipeline.
        psycopg.Error: Postgres or the SQL fails.
    """
    connection = connect(dsn, "migrate")
    try:
        connection.execute("SELECT pg_advisory_lock(%s)", (_MIGRATION_LOCK,))
        _check_version(connection)
        if not _exists(connection, "onefold.applied"):
            connection.execute(_BOOKKEEPING)
        found = files(pipeline, sql_root)
        if _new(found, _applied(connection, pipeline)):
            _take_over(connection, pipeline, found)
        applied = _applied(connection, pipeline)
        return [path.name for path in found if _apply(connection, pipeline, path, applied)]
    except psycopg.errors.InsufficientPrivilege as error:
        raise Refused(
            Code.POSTGRES_RIGHT,
            f"the role {role_of(connection)} of PostgreSQL may not look for the tables of {pipeline}, or make those that are "
            f"missing ({first_line(error)}): run `onefold migrate {pipeline}` as the owner, and `onefold grants` for the rights",
        ) from error
    finally:
        connection.close()


def _applied(connection: Connection, pipeline: str) -> dict[str, str]:
    """The checksums of the applied files, by name."""
    asked = "SELECT file, sha256 FROM onefold.applied WHERE pipeline = %s"
    return dict(connection.execute(asked, (pipeline,)).fetchall())


def _new(found: list[Path], applied: dict[str, str]) -> bool:
    return any(path.name not in applied for path in found)


def _check_version(connection: Connection) -> None:
    if not _exists(connection, "onefold.version"):
        return  # an empty database, or one of 0.1.0
    ((number,),) = connection.execute("SELECT number FROM onefold.version").fetchall()
    if number > KNOWN_VERSION:
        raise Refused(
            Code.NEWER_VERSION,
            f"a newer Onefold has made version {number} of the tables in the schema onefold, and this one knows versions "
            f"up to {KNOWN_VERSION}: start the newer one again. See `onefold docs upgrade`",
        )


def _take_over(connection: Connection, pipeline: str, found: list[Path]) -> None:
    """Copy the entries of files applied by 0.1.0 into onefold.applied. The checksum identifies a file."""
    if not _exists(connection, "onefold.migration"):
        return
    for path in found:
        checksum = _checksum(path)
        connection.execute(
            "INSERT INTO onefold.applied (pipeline, file, sha256, applied_at)"
            " SELECT %s, %s, sha256, applied_at FROM onefold.migration WHERE sha256 = %s LIMIT 1 ON CONFLICT DO NOTHING",
            (pipeline, path.name, checksum),
        )


def _apply(connection: Connection, pipeline: str, path: Path, applied: dict[str, str]) -> bool:
    checksum = _checksum(path)
    if applied.get(path.name) == checksum:
        return False
    if path.name in applied:
        raise Misconfigured(
            Code.SQL_CHANGED,
            f"sql/schema/{path.name} was changed after it was applied to this database: "
            "restore it, and put the change into a new file",
        )
    with transaction(connection):
        connection.execute(path.read_bytes())
        connection.execute(
            "INSERT INTO onefold.applied (pipeline, file, sha256) VALUES (%s, %s, %s)", (pipeline, path.name, checksum)
        )
    return True


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _exists(connection: Connection, table: str) -> bool:
    return connection.execute("SELECT to_regclass(%s)", (table,)).fetchone() != (None,)
