"""A fake database connection, for tests of the dashboard with arbitrary values."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from psycopg import sql

Rows = Sequence[Sequence[Any]]


class Answering:
    """Fake of a psycopg connection.

    `answer` returns the rows of a statement, or raises. `statements`: executed statements. `timeouts`: set limits in
    milliseconds.
    """

    closed = False

    def __init__(self, answer: Callable[[str], Rows]) -> None:
        self._answer = answer
        self.statements: list[str] = []
        self.timeouts: list[int] = []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """As psycopg's."""
        yield

    async def execute(self, query: sql.Composed | sql.SQL | str | bytes, *values: Any) -> Any:
        """Execute a statement. The cursor has columns a, b, c, ..."""
        text = query.as_string(None) if isinstance(query, sql.Composable) else str(query)
        if text.startswith("SET LOCAL"):
            self.timeouts.append(int(text.rpartition(" ")[2]))
            return None
        self.statements.append(text)
        rows = list(self._answer(text))

        async def fetchall() -> Rows:
            return rows

        async def fetchone() -> Sequence[Any] | None:
            return rows[0] if rows else None

        async def fetchmany(size: int) -> Rows:
            return rows[:size]

        columns = [SimpleNamespace(name=name) for name in "abcdefgh"[: len(rows[0]) if rows else 0]]
        return SimpleNamespace(description=columns, fetchall=fetchall, fetchone=fetchone, fetchmany=fetchmany)
