"""The sink's connections to Postgres, with time limits for statements, and transactions with a verified COMMIT."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from onefold import postgres
from onefold.postgres import Held, WatchedSession

Connection = psycopg.Connection[tuple[Any, ...]]

# A paused sink (SIGSTOP, a stalled virtual machine) may hold row locks of the ledger. The server ends an idle session inside a
# transaction before the lock timeout of a concurrent sink. No statement of the sink normally takes two minutes.
_SETTINGS = {
    "idle_in_transaction_session_timeout": "15s",
    "lock_timeout": "20s",
    "statement_timeout": "120s",
    # With less memory, a merge would sort a full batch in temporary files.
    "work_mem": "64MB",
    # For the temporary staging tables. The server allocates the memory only on use.
    "temp_buffers": "64MB",
    # The compilation of a merge takes longer than the execution time saved.
    "jit": "off",
}
# Below idle_in_transaction_session_timeout.
_ASK_EVERY_S = 5.0


def connect(
    dsn: str,
    writer: str,
    service: str = "sink",
    *,
    patience_s: float = postgres.PATIENCE_S,
    held: Held | None = None,
) -> WatchedSession:
    """Open a connection in autocommit mode. Only `transaction` opens transactions. The application name has `service` and
    `writer`. `patience_s`, `held`: see `onefold.postgres.WatchedSession`.

    Raises:
        onefold.postgres.Unfit: the database is not usable.
        psycopg.OperationalError: Postgres does not respond.
    """
    return postgres.connect(
        dsn,
        f"onefold-{service} {writer}",
        settings=_SETTINGS,
        patience_s=patience_s,
        held=held,
    )


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Run the block between BEGIN and COMMIT, or ROLLBACK if the block raises.

    The function checks the response to COMMIT, because Postgres responds to the COMMIT of a failed transaction with ROLLBACK
    and no error. After an exception from COMMIT itself, the outcome is unknown. The caller must then enter the ledger's
    compare-and-swap, which detects a committed transaction.
    """
    connection.execute("BEGIN")
    try:
        yield
    except BaseException:
        if not connection.closed:
            connection.execute("ROLLBACK")
        raise
    answer = connection.execute("COMMIT").statusmessage
    if answer != "COMMIT":
        raise RuntimeError(f"Postgres answered {answer} to COMMIT: the transaction had failed before")


@contextmanager
def awake(connection: Connection) -> Iterator[None]:
    """Keep the session active inside its transaction, because a Spark job may wait for jobs of other pipelines. A paused
    process sends no statement, so the server ends its session.
    """
    done = threading.Event()

    def ask() -> None:
        with suppress(psycopg.Error):  # the caller's next statement also raises the error
            while not done.wait(_ASK_EVERY_S):
                connection.execute("SELECT 1")

    asking = threading.Thread(target=ask, name="awake", daemon=True)
    asking.start()
    try:
        yield
    finally:
        done.set()
        asking.join()
