"""The sessions of all services in PostgreSQL, with all settings necessary for correct reads and writes.

A role, a database, the environment of libpq and a login trigger may each change settings. The module therefore makes the
settings in the session itself. The session must be a real PostgreSQL session, because a connection pooler shares sessions among
clients.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict

from onefold.error_codes import Code, CodedError
from onefold.exit_codes import REFUSED, USAGE

#: The time-out for opening a session, in seconds. libpq's minimum is 2.
CONNECT_S = 5.0
#: The time in seconds for which locks or standbys may block a command's statement.
PATIENCE_S = 15.0
# After this time in seconds without a response, a second session queries the reason.
_LOOK_S = 5.0
# The time-out of the query for the reason, which takes milliseconds.
_ASK_S = 3.0

RV = TypeVar("RV")

#: The settings of every session, for the form of values, the meaning of names, and transactions.
SETTINGS = {
    # Onefold encodes and decodes the bytes of COPY.
    "client_encoding": "UTF8",
    # psycopg only reads ISO dates and intervals in PostgreSQL's own form. `explain` and `rebuild` compare texts.
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    # The shortest exact form of floats.
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    # Names in merges and in schema files, and texts of regclass, are relative to this path.
    "search_path": '"$user", public',
    "quote_all_identifiers": "off",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "row_security": "on",
    # The compare-and-swap of the ledger waits for a concurrent transaction, and then reads the committed row.
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # A role's time limits are for queries by people. Services have their own limits.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "client_connection_check_interval": "5s",  # the server detects a dead client while a statement runs or waits
    # The server detects the loss of an idle client's machine within about 15 s. With most systems' defaults, the locks of the
    # session would stay for two hours. A paused process still counts as alive, because its system responds.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "15s",
}
READ_ONLY = {"default_transaction_read_only": "on"}

# The client's side: a lost server is detected after about 15 s.
_NETWORK: dict[str, Any] = {
    "tcp_user_timeout": 15_000,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}

# A role's limit must not end the statement with the settings, nor the query for the reason. Options at the start of a session
# override the role's settings.
_UNLIMITED = "-c statement_timeout=0"
# A custom setting with a random value. The server has the value only if the options of this start reached the server.
_MARK = "onefold.session"
_SET_UP = """
SELECT current_setting(%s, true), current_setting('server_encoding'),
       (SELECT count(set_config(wanted.name, wanted.value, false))
        FROM unnest(%s::text[], %s::text[]) AS wanted (name, value)
        WHERE current_setting(%s, true) = %s                -- a pooler's session is somebody else's too
          AND current_setting(wanted.name, true) IS NOT NULL) -- PostgreSQL 15 and 16 have no transaction_timeout
"""
# The separator between the severity, in the server's language, and the server's message for a refused session. libpq's messages
# for network errors have no severity.
_SAID_BY_THE_SERVER = ":  "
# The server's message for a missing right to connect, recognized only in English. libpq hides the SQLSTATE of a refused
# session.
_NO_CONNECT = "permission denied for database"
# libpq's message for every refused certificate.
_NO_TRUST = "certificate verify failed"
# The messages of libpq and of an English server about a refused login. libpq hides the SQLSTATE here, too.
_NO_LOGIN = re.compile(
    r"authentication failed for user|no pg_hba\.conf entry|pg_hba\.conf rejects|is not permitted to log in"
    r"|role \".*\" does not exist|no password supplied|valid client certificate|certificate verify failed"
    r"|does not match host name|SSL was required|SSL error: .* alert |certificate file|private key file"
)
# Words in libpq's messages about TLS, which come only from a responding server.
_TLS = ("SSL", "certificate")
_SSL_REQUEST = struct.pack(">II", 8, 80877103)  # from PostgreSQL's protocol
# PgBouncer's message for options that PgBouncer does not forward.
_REFUSED_BY_POOLER = "unsupported startup parameter"

_ACTIVITY = """
SELECT query, wait_event_type, wait_event,
       coalesce(extract(epoch FROM clock_timestamp() - query_start), 0)::double precision,
       current_setting('synchronous_standby_names'),
       ARRAY(SELECT format('process %%s (%%s)', pid, coalesce(nullif(other.application_name, ''), other.backend_type))
             FROM pg_stat_activity AS other WHERE pid = ANY (pg_blocking_pids(session.pid)) ORDER BY pid)
FROM pg_stat_activity AS session
WHERE pid = %s AND coalesce(state, 'hidden') NOT LIKE 'idle%%' -- what may not be seen is no lost answer
"""
# A merge file may begin with a comment.
_COMMENTS = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*", re.DOTALL)


class Unfit(CodedError, psycopg.Error):
    """The database, or a pooler in front of the database, cannot be used."""

    exit_code = USAGE

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(Code.POSTGRES_UNFIT, message)
        self.hint = hint


class NoConnect(Unfit):
    """The role of the DSN has no right to open a session in the database."""

    exit_code = REFUSED

    def __init__(self, role: str, database: str) -> None:
        sentence = f"the role {role} of PostgreSQL lacks CONNECT on the database {database}"
        super().__init__(f"{sentence}: `onefold grants` prints the SQL that gives it", "")
        self.code = Code.POSTGRES_RIGHT


class NoLogin(CodedError, psycopg.OperationalError):
    """PostgreSQL refuses the login, or the client refuses PostgreSQL's certificate. The text is libpq's message.

    For a service with an earlier successful login, the refusal may be temporary: a new password is set on one side first.
    """

    exit_code = REFUSED
    hint = "Correct the user, the password or the certificates in ONEFOLD_POSTGRES_DSN."

    def __init__(self, message: str) -> None:
        super().__init__(Code.POSTGRES_LOGIN, message)


class HeldUp(psycopg.OperationalError):
    """Locks or standbys block a statement for too long. The text is a sentence.

    The outcome of a COMMIT is then unknown: a COMMIT that waits for a standby is already written, and becomes visible after the
    standby's return.
    """

    code = Code.POSTGRES_HELD_UP

    @property
    def unknown(self) -> bool:
        """Whether the statement may still succeed. Only for a COMMIT, because any other transaction is rolled back."""
        return str(self).startswith("COMMIT ")


#: Called repeatedly with the reason of a blocked statement, and with "" at its end. An exception closes the session.
Held = Callable[[str], None]


class WatchedSession(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose statements always end: without a response, a second session queries the state of the statement.

    Attributes:
        dsn: The DSN for the second session; "" for a time-out of `_ASK_S` seconds instead.
        patience_s: The time for which locks or standbys may block a statement; None for no limit while the server responds.
        held: See `Held`.
    """

    dsn = ""
    patience_s: float | None = PATIENCE_S
    held: Held | None = None

    def wait(self, gen: PQGen[RV], *args: Any, **more: Any) -> RV:
        """Wait for the server.

        Both errors close the session.

        Raises:
            HeldUp: Locks or standbys block the statement for too long.
            psycopg.OperationalError: The server does not respond.
        """
        if not self.dsn:
            return super().wait(gen, timeout=_ASK_S)
        return super().wait(self._watched(gen), *args, **more)

    def _watched(self, gen: PQGen[RV]) -> PQGen[RV]:
        """The steps of `gen`, with a query for the reason after each long time without a response."""
        look = _Look(self)
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                try:
                    look.after(bool(ready))
                except BaseException:
                    self.pgconn.finish()
                    raise
                wanted = gen.send(ready)
        except StopIteration as end:
            found: RV = end.value
            return found
        finally:
            look.end()


class _Look:
    """The observation of a single statement."""

    def __init__(self, session: WatchedSession) -> None:
        self._session = session
        self._free = self._heard = time.monotonic()  # `_free`: the last time at which the statement was not blocked
        self._every_s = _LOOK_S if session.patience_s is None else min(_LOOK_S, session.patience_s)
        self._said = self._silent = False

    def after(self, answered: bool) -> None:
        """Query the reason if a response is overdue. Raises psycopg.OperationalError if the wait has become useless."""
        now = time.monotonic()
        if answered:
            self._heard = now
        elif now - self._heard > self._every_s:
            self._ask(now)
            self._heard = time.monotonic()

    def end(self) -> None:
        """Report the end of the blockage, if a blockage was reported."""
        if self._said and self._session.held is not None:
            self._session.held("")

    def _ask(self, now: float) -> None:
        session = self._session
        impatient = session.patience_s is not None and now - self._free >= session.patience_s
        reason: str | None = ""
        try:
            reason = keeps(session.dsn, session.info.backend_pid)
            if reason is None:
                raise psycopg.OperationalError(
                    f"the answer of PostgreSQL's process {session.info.backend_pid} was lost"
                )
        except psycopg.OperationalError:
            # Raise only at the second failure: the response may be in transit, or a busy machine may delay the second session.
            if self._silent:
                raise
            self._silent = True
            return
        self._silent = False
        if not reason:
            self._free = now
            self.end()  # the statement runs again
            self._said = False
        if reason and session.held is not None:
            self._said = True
            session.held(reason)
        if reason and impatient:
            raise HeldUp(reason)


def connect(
    dsn: str,
    application: str,
    *,
    autocommit: bool = True,
    settings: Mapping[str, str] | None = None,
    patience_s: float | None = PATIENCE_S,
    held: Held | None = None,
    connect_s: float = CONNECT_S,
) -> WatchedSession:
    """Open a session with `SETTINGS`, overridden by `settings`.

    Args:
        application: The application name in the server's views.
        patience_s, held: See `WatchedSession`.

    Raises:
        Unfit: the database has another encoding than UTF8, or a pooler stands before it.
        NoLogin: PostgreSQL refuses the login, or has a certificate that is not trusted.
        psycopg.OperationalError: PostgreSQL does not answer.
    """
    mark = secrets.token_hex(8)
    with _naming_the_reason(dsn):
        made = WatchedSession.connect(
            dsn, autocommit=True, prepare_threshold=None, **_start(dsn, application, mark, connect_s)
        )
    made.dsn, made.patience_s, made.held = dsn, patience_s, held
    try:
        _check(made.execute(_SET_UP, _values(settings, mark)).fetchone(), mark, made.info)
        made.autocommit = autocommit
    except BaseException:
        made.close()
        raise
    return made


async def connect_async(
    dsn: str, application: str, *, settings: Mapping[str, str] | None = None, connect_s: float = CONNECT_S
) -> AsyncConnection[tuple[Any, ...]]:
    """Open a session as in `connect`, but for an event loop, with the caller's own time limits."""
    mark = secrets.token_hex(8)
    with _naming_the_reason(dsn):
        made = await AsyncConnection.connect(
            dsn, autocommit=True, prepare_threshold=None, **_start(dsn, application, mark, connect_s)
        )
    try:
        async with asyncio.timeout(connect_s):
            _check(await (await made.execute(_SET_UP, _values(settings, mark))).fetchone(), mark, made.info)
    except TimeoutError:
        await made.close()
        raise psycopg.OperationalError(f"PostgreSQL has not answered within {connect_s:.0f} s") from None
    except BaseException:
        await made.close()
        raise
    return made


def hang_up(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Close the socket of a connection, from any thread, so that a thread waiting for a response gets an error."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def keeps(dsn: str, pid: int) -> str | None:
    """The reason of a session's blocked statement, in a sentence; "" for a running statement, None for an idle session.

    Raises:
        psycopg.OperationalError: The server does not respond.
    """
    try:
        with closing(WatchedSession.connect(dsn, autocommit=True, **_start(dsn, "onefold looks", "", _ASK_S))) as asked:
            # After ALTER ROLE ... SET role, the session has a different role and would not see the statements of its own login.
            asked.execute("SET ROLE NONE")
            found = asked.execute(_ACTIVITY, (pid,)).fetchone()
            return None if found is None else _sentence(*found)
    except psycopg.Error as error:
        reason = _first_line(error)
        if error.sqlstate is not None or _SAID_BY_THE_SERVER in reason:
            return ""  # the server responds, but refuses this session, for instance after too many connections
    # Raise outside of the handler, so that a stored error does not keep the failed connection open.
    raise psycopg.OperationalError(f"PostgreSQL does not answer any more: {reason}")


def _sentence(
    query: str, kind: str | None, event: str | None, seconds: float, standbys: str, others: Sequence[str]
) -> str:
    words = _COMMENTS.sub("", query, count=1).split(maxsplit=1)
    statement = words[0].strip(";").upper() if words else "a statement"
    if event == "SyncRep":
        return (
            f"{statement} waits for a synchronous standby (wait event SyncRep) for {seconds:.0f} s:"
            f" start one of synchronous_standby_names = '{standbys}', or change that setting"
        )
    if kind == "Lock":
        by = f" that {' and '.join(others)} holds" if others else ""
        return f"{statement} waits for a lock{by} (wait event {event}) for {seconds:.0f} s"
    if kind in ("Timeout", "Extension") or (kind == "IPC" and statement == "COMMIT"):
        return f"{statement} waits (wait event {event}) for {seconds:.0f} s"
    return ""


def _start(dsn: str, application: str, mark: str, connect_s: float) -> dict[str, Any]:
    """libpq's parameters for a session. The user's own options stay, because they may have further settings."""
    given = str(conninfo_to_dict(dsn).get("options") or os.environ.get("PGOPTIONS") or "")
    marked = f"-c {_MARK}={mark}" if mark else ""
    return {
        **_NETWORK,
        "application_name": application,
        "client_encoding": "UTF8",
        "connect_timeout": max(2, int(connect_s)),
        "options": " ".join(filter(None, (given, marked, _UNLIMITED))),
    }


def _values(settings: Mapping[str, str] | None, mark: str) -> tuple[Any, ...]:
    wanted = {**SETTINGS, **(settings or {})}
    return _MARK, list(wanted), list(wanted.values()), _MARK, mark


def _check(found: tuple[Any, ...] | None, mark: str, info: psycopg.ConnectionInfo) -> None:
    """Check for a real PostgreSQL session with a UTF8 database. Raises `Unfit`."""
    assert found is not None, "a SELECT without FROM has one row"
    if found[0] != mark:
        raise _pooled(f"{info.host}:{info.port}")
    if found[1] != "UTF8":
        raise Unfit(
            f"the database {info.dbname} has the encoding {found[1]}, which does not hold every text: Onefold needs UTF8",
            "Make another one with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0, and set ONEFOLD_POSTGRES_DSN to it.",
        )


def _pooled(place: str) -> Unfit:
    return Unfit(
        f"a connection pooler such as PgBouncer stands before PostgreSQL at {place} and drops the settings of a session",
        "Set ONEFOLD_POSTGRES_DSN to the address of PostgreSQL itself: locks and staging tables need a session of their own.",
    )


@contextmanager
def _naming_the_reason(dsn: str) -> Iterator[None]:
    try:
        yield
    except psycopg.OperationalError as error:
        given = conninfo_to_dict(dsn)
        if _NO_CONNECT in str(error):
            user = str(given.get("user") or "of this login")
            raise NoConnect(user, str(given.get("dbname") or user)) from None
        if _NO_TRUST in str(error) and (fault := _fault_of_certificate(given)):
            raise NoLogin(f"{_first_line(error)} ({fault})") from None
        if _NO_LOGIN.search(str(error)):
            raise NoLogin(_first_line(error)) from None
        if _REFUSED_BY_POOLER not in str(error):
            raise
        raise _pooled(f"{given.get('host', 'localhost')}:{given.get('port', 5432)}") from None


def _fault_of_certificate(given: Mapping[str, Any]) -> str:
    """The fault of the server's refused certificate, found with a second handshake; "" if the handshake finds no fault."""
    authority = str(given.get("sslrootcert") or os.environ.get("PGSSLROOTCERT") or "")
    host, port = given.get("host") or os.environ.get("PGHOST"), given.get("port") or os.environ.get("PGPORT") or 5432
    with suppress(OSError, ValueError):
        context = ssl.create_default_context(cafile=authority if authority != "system" else None)
        context.check_hostname = False
        with closing(socket.create_connection((host, int(port)), _ASK_S)) as plain:
            plain.sendall(_SSL_REQUEST)
            plain.recv(1)
            try:
                context.wrap_socket(plain).close()
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
    return ""


def unopened(error: BaseException) -> str:
    """The reason of a failed connection, as the end of a sentence with the server as the subject."""
    reason = _first_line(error)
    refused = _SAID_BY_THE_SERVER in reason or any(word in reason for word in _TLS)
    return "opens no session" if refused else "does not answer"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
