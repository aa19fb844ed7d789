"""An unreachable synchronous standby."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg

from tests.support.waiting import eventually

_NAME = "gone"


@contextmanager
def standby_gone(dsn: str) -> Iterator[None]:
    """Let each COMMIT of the server wait for a standby until the block ends."""
    _set(dsn, _NAME)
    try:
        eventually(lambda: _waits(dsn), 10, "a COMMIT waits")
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


def _waits(dsn: str) -> bool:
    """Whether a COMMIT waits. A session may see the setting before the checkpointer, which puts it into effect."""
    with closing(psycopg.connect(dsn, autocommit=True)) as probe, psycopg.connect(dsn, autocommit=True) as admin:
        pid = probe.info.backend_pid
        committing = threading.Thread(target=probe.execute, args=("SELECT pg_logical_emit_message(true, 'probe', '')",))
        committing.start()

        def looked_at() -> tuple[str | None] | None:
            return admin.execute("SELECT wait_event FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone()

        eventually(lambda: not committing.is_alive() or looked_at() == ("SyncRep",), 10, "it waits, or is done")
        waits = committing.is_alive()
        admin.execute("SELECT pg_cancel_backend(%s)", [pid])
        committing.join(10)
        return waits
