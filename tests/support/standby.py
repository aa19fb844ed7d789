"""A synchronous standby that is gone."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tests.support.waiting import eventually

_NAME = "gone"


@contextmanager
def standby_gone(dsn: str) -> Iterator[None]:
    """Each COMMIT of the server waits for a standby, until the block ends."""
    _set(dsn, _NAME)
    try:
        yield
    finally:
        _set(dsn, "")


def _set(dsn: str, name: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        admin.execute("SELECT pg_reload_conf()")
    eventually(lambda: _shown(dsn) == name, 10, f"synchronous_standby_names is {name!r}")


def _shown(dsn: str) -> str:
    with psycopg.connect(dsn, autocommit=True) as admin:
        return str((admin.execute("SHOW synchronous_standby_names").fetchone() or ("?",))[0])
