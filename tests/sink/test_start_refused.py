"""What a start of a query makes of an error of PostgreSQL: it waits for what passes, and leaves the pipeline out for others."""

from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from onefold.error_codes import Code, CodedError
from onefold.processor.core.errors import Misconfigured, Retriable
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.spark import query
from onefold.spark_sink.spark.query import Query
from tests.support.coded import raises


@pytest.mark.parametrize(
    ("error", "raised", "code"),
    [
        (psycopg.OperationalError("connection refused"), Retriable, Code.POSTGRES_SILENT),
        (psycopg.errors.ReadOnlySqlTransaction("read-only"), Retriable, Code.POSTGRES_REFUSES),
        (psycopg.errors.InternalError_("tuple concurrently updated"), Retriable, Code.POSTGRES_REFUSES),
        (psycopg.errors.TooManyConnections("too many"), Retriable, Code.POSTGRES_REFUSES),
        (psycopg.errors.LockNotAvailable("a lock"), Retriable, Code.POSTGRES_REFUSES),
        (psycopg.errors.InsufficientPrivilege("denied"), Misconfigured, Code.SQL_WRONG),
        (psycopg.errors.ActiveSqlTransaction("in a block"), Misconfigured, Code.SQL_WRONG),
        (psycopg.errors.UndefinedColumn("no column"), Misconfigured, Code.SQL_WRONG),
        (psycopg.errors.CheckViolation("a row"), Misconfigured, Code.SQL_WRONG),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_passes_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, error: psycopg.Error, raised: type[CodedError], code: Code
) -> None:
    def connect(*arguments: Any, **more: Any) -> None:
        raise error

    monkeypatch.setattr(query, "connect", connect)
    plan = cast("Plan", SimpleNamespace(postgres_dsn="", writer="", held=print, domain=SimpleNamespace(name="runner")))
    with raises(raised, code, str(error)):
        Query(lambda: cast("Any", None), plan, cast("Any", None)).start()
