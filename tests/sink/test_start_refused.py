"""What a start of a query makes of an error of PostgreSQL: it waits for what passes, and leaves the pipeline out for others."""

from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from onefold.spark_sink.errors import Misconfigured, SinkError, Waiting
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.spark import query
from onefold.spark_sink.spark.query import Query


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        (psycopg.OperationalError("connection refused"), Waiting, "Postgres does not answer: connection refused"),
        (psycopg.errors.ReadOnlySqlTransaction("read-only"), Waiting, "Postgres refuses to begin: read-only"),
        (psycopg.errors.InternalError_("tuple concurrently updated"), Waiting, "Postgres refuses to begin: tuple"),
        (psycopg.errors.TooManyConnections("too many"), Waiting, "Postgres refuses to begin: too many"),
        (psycopg.errors.LockNotAvailable("a lock"), Waiting, "Postgres refuses to begin: a lock"),
        (psycopg.errors.InsufficientPrivilege("denied"), Misconfigured, "sink's own schemas: denied"),
        (psycopg.errors.ActiveSqlTransaction("in a block"), Misconfigured, "sink's own schemas: in a block"),
        (psycopg.errors.UndefinedColumn("no column"), Misconfigured, "sink's own schemas: no column"),
        (psycopg.errors.CheckViolation("a row"), Misconfigured, "sink's own schemas: a row"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_passes_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, error: psycopg.Error, raised: type[SinkError], says: str
) -> None:
    def migrate(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(query, "migrate", migrate)
    plan = cast("Plan", SimpleNamespace(postgres_dsn=""))
    with pytest.raises(raised, match=says):
        Query(cast("Any", None), plan).start()
