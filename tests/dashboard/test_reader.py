"""The page's connection: it cannot write, and what it reads together is of one moment."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, LiteralString

import psycopg
import pytest

from onefold.dashboard import rollups
from onefold.dashboard.reader import Connection, DatabaseReader, connect
from onefold.operate.panels import load
from onefold.pipelines import find
from tests.support.floor import Floor
from tests.support.migrated import migrate_all
from tests.support.site import ROOT

pytestmark = pytest.mark.promise("dashboards-only-read")


def read(dsn: str, fetch: Callable[[Connection], Coroutine[Any, Any, Any]]) -> Any:
    """What `fetch` finds in one snapshot."""

    async def run() -> Any:
        reader = DatabaseReader(dsn)
        async with reader.snapshot() as connection:
            found = await fetch(connection)
        await reader.close()
        return found

    return asyncio.run(run())


def test_a_write_is_refused_by_two_locks(floor: Floor, database: str) -> None:
    """Transactions are read-only; and a transaction that is made writable lacks the rights."""

    async def write(connection: Connection, statement: LiteralString) -> None:
        await connection.execute(statement)

    async def write_all_the_same(statement: LiteralString) -> None:
        connection = await connect(database)
        await connection.set_read_only(False)
        try:
            await connection.execute("SET default_transaction_read_only = off")
            await connection.execute(statement)
        finally:
            await connection.close()

    statements: tuple[LiteralString, ...] = (
        "UPDATE trades.risk SET value = 0",
        "INSERT INTO onefold.verdict (domain) VALUES ('x')",
        "DROP TABLE trades.risk",
    )
    for statement in statements:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            read(database, partial(write, statement=statement))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            asyncio.run(write_all_the_same(statement))


def test_all_of_a_snapshot_is_of_one_moment(floor: Floor, database: str) -> None:
    """A batch that lands between two questions is in neither answer, so levels add up on the screen as well."""
    floor.land(200)

    async def fetch(connection: Connection) -> None:
        (rollup,) = load(find()["trades"]).rollups
        first = await rollups.fetch(connection, rollup, ())
        floor.land(200)
        again = await rollups.fetch(connection, rollup, ())
        assert first == again
        assert first.node.ours is not None
        assert sum(part.ours.value for part in again.parts if part.ours is not None) == first.node.ours.value

    read(database, fetch)


def test_where_the_role_is_missing_reading_goes_on(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As on a Postgres whose owner may not create roles: read-only transactions remain, and the log has a warning."""
    name = f"plain_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(database, autocommit=True) as admin:
        migrate_all(database, ROOT / "sql")
        admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
        try:
            plain = psycopg.conninfo.make_conninfo(database, user=name, password="x")
            assert read(plain, lambda connection: _user(connection)) == name
        finally:
            admin.execute(f"DROP ROLE {name}")
    assert "reading without the role onefold_reader" in capsys.readouterr().out


async def _user(connection: Connection) -> Any:
    (user,) = await (await connection.execute("SELECT current_user")).fetchone() or (None,)
    return user
