"""The sink's one door to Postgres: a connection that cannot hang for ever, and a commit that cannot lie."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from onefold import postgres
from onefold.postgres import Held, WatchedSession

Connection = psycopg.Connection[tuple[Any, ...]]

# A frozen sink (SIGSTOP, a stalled virtual machine) may hold the ledger's row locks. These bound how long a concurrent sink
# waits: the server ends the frozen one's session after 15 s of idling inside a transaction, well before the other sink's
# own 20 s of patience for a lock are over. No statement of ours needs two minutes; one that does hangs.
_SETTINGS = {
    "idle_in_transaction_session_timeout": "15s",
    "lock_timeout": "20s",
    "statement_timeout": "120s",
    # A merge sorts a batch, which by default goes through files. 400,000 rows of a usual width take about as much as this.
    "work_mem": "64MB",
    # Of temporary tables, the staged rows; memory that is taken only as it is needed.
    "temp_buffers": "64MB",
    # To compile a merge takes longer than it saves, and by default Postgres compiles every large one anew.
    "jit": "off",
}
# Before the server ends a session that idles in a transaction.
_ASK_EVERY_S = 5.0


def connect(
    dsn: str,
    writer: str,
    service: str = "sink",
    *,
    patience_s: float = postgres.PATIENCE_S,
    held: Held | None = None,
) -> WatchedSession:
    """A connection in autocommit mode, whose transactions are opened by `transaction` alone. `service` and `writer` are what
    the server's own views show it as. `patience_s`, `held`: see `onefold.postgres.WatchedSession`.

    Raises:
        onefold.postgres.Unfit: the database cannot be used.
        psycopg.OperationalError: Postgres does not answer.
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
    """BEGIN ... COMMIT, or ROLLBACK when the block raises.

    The answer to COMMIT is checked: on a failed transaction Postgres answers ROLLBACK, politely and without an error.
    An exception out of COMMIT itself means that nobody here knows the outcome; whoever goes on must go through the
    ledger's compare-and-swap, which knows.
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
    """Keep the session from idling inside its transaction: a job of Spark may wait behind those of other pipelines. A paused
    process asks nothing: its session ends in time.
    """
    done = threading.Event()

    def ask() -> None:
        with suppress(psycopg.Error):  # the next statement raises the error too
            while not done.wait(_ASK_EVERY_S):
                connection.execute("SELECT 1")

    asking = threading.Thread(target=ask, name="awake", daemon=True)
    asking.start()
    try:
        yield
    finally:
        done.set()
        asking.join()
