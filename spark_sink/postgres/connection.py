"""The sink's one door to Postgres: a connection that cannot hang for ever, and a commit that cannot lie."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

Connection = psycopg.Connection[tuple[Any, ...]]

# A frozen sink (SIGSTOP, a stalled virtual machine) may hold the ledger's row locks. These bound how long a concurrent sink
# waits: the server ends the frozen one's session after 15 s of idling inside a transaction, well before the other sink's
# own 20 s of patience for a lock are over. No statement of ours needs two minutes; one that does hangs.
_SESSION = {
    "idle_in_transaction_session_timeout": "15s",
    "lock_timeout": "20s",
    "statement_timeout": "120s",
    "client_connection_check_interval": "5s",  # the server notices a dead client while it works or waits for it
    # And one whose machine is gone while the session is idle, within some 15 s: by the defaults of most systems that takes two
    # hours, in which its locks keep others away. A process that is frozen is none: its system answers.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "15s",
    "timezone": "UTC",
    "datestyle": "ISO",
    # A merge sorts a batch, which by default goes through files. 400,000 rows of a usual width take about as much as this.
    "work_mem": "64MB",
    # Of temporary tables, the staged rows; memory that is taken only as it is needed.
    "temp_buffers": "64MB",
    # To compile a merge takes longer than it saves, and by default Postgres compiles every large one anew.
    "jit": "off",
}

# The same from our side: a server that vanished without a word is given up after about 15 s.
_NETWORK: dict[str, Any] = {
    "connect_timeout": 5,
    "tcp_user_timeout": 15_000,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}


def connect(dsn: str, writer: str, service: str = "sink") -> Connection:
    """A connection in autocommit mode, whose transactions are opened by `transaction` alone. `service` and `writer` are what
    the server's own views show it as.

    Raises:
        psycopg.OperationalError: Postgres does not answer.
    """
    options = " ".join(f"-c {name}={value}" for name, value in _SESSION.items())
    return psycopg.connect(
        dsn, autocommit=True, options=options, application_name=f"onefold-{service} {writer}", **_NETWORK
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
