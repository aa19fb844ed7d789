"""A test gets an empty database, also one that an earlier test used."""

import psycopg
import pytest

from tests.support.infrastructure import new_database
from tests.support.migrated import migrate_all
from tests.support.stage import SQL

pytestmark = pytest.mark.postgres

OID = b"SELECT oid FROM pg_database WHERE datname = current_database()"
OBJECTS = b"""
    SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_namespace), (SELECT count(*) FROM pg_default_acl),
        (SELECT nspacl::text FROM pg_namespace WHERE nspname = 'public')"""


def answer(dsn: str, question: bytes) -> tuple[object, ...] | None:
    with psycopg.connect(dsn) as connection:
        return connection.execute(question).fetchone()


def used(postgres_dsn: str, *statements: bytes) -> tuple[object, ...] | None:
    """Migrate a database, and execute statements in it. Returns its OID."""
    with new_database(postgres_dsn) as dsn:
        migrate_all(dsn, SQL)
        with psycopg.connect(dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)
        return answer(dsn, OID)


def test_a_migrated_database_is_emptied_and_used_again(postgres_dsn: str) -> None:
    oid = used(postgres_dsn)
    with new_database(postgres_dsn) as dsn:
        assert answer(dsn, OID) == oid
        assert answer(dsn, OBJECTS) == answer(psycopg.conninfo.make_conninfo(dsn, dbname="template1"), OBJECTS)


@pytest.mark.parametrize(
    "statement",
    [
        b"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = 7777', current_database()); END $$",
        b"CREATE FUNCTION pg_catalog.left_over() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        b"CREATE CAST (xml AS json) WITH INOUT",
        b"CREATE PUBLICATION left_over",
        b"SELECT lo_create(0)",
    ],
    ids=["a setting", "a function in the catalog", "a cast", "a publication", "a large object"],
)
def test_a_database_that_keeps_something_is_not_used_again(postgres_dsn: str, statement: bytes) -> None:
    oid = used(postgres_dsn, statement)
    with new_database(postgres_dsn) as dsn:
        assert answer(dsn, OID) != oid
