"""The one door to PostgreSQL: it opens every session of every service, with all settings on which reading and writing rest.

A role, a database, the environment of libpq and a login trigger may each set something else. So the settings are made in the
session itself, and the session must be one: a connection pooler lends its sessions to several clients in turn.
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

#: How long a server may take to open a session, in seconds; libpq knows no shorter time than 2.
CONNECT_S = 5.0
#: How long a statement of a command may be held up by others, in seconds.
PATIENCE_S = 15.0
# After so many seconds without an answer another session asks what keeps the statement.
_LOOK_S = 5.0
# For that question. Its answer takes milliseconds.
_ASK_S = 3.0

RV = TypeVar("RV")

#: What values look like, what names mean and what a transaction is: of every session.
SETTINGS = {
    # COPY sends and receives bytes that were encoded by us.
    "client_encoding": "UTF8",
    # psycopg reads dates in ISO only, and intervals in PostgreSQL's own form only. `explain` and `rebuild` compare texts.
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    # A float is written with the digits that tell it from every other one.
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    # Merges and schema files name what they mean relative to this path, and so do texts of regclass.
    "search_path": '"$user", public',
    "quote_all_identifiers": "off",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "row_security": "on",
    # The compare-and-swap of the ledger waits for the other transaction, and then reads what that has committed.
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # A role's time limits are of its people's questions. Those of a service are its own.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "client_connection_check_interval": "5s",  # the server notices a dead client while it works or waits for it
    # And one whose machine is gone while the session is idle, within some 15 s: by the defaults of most systems that takes two
    # hours, in which its locks keep others away. A process that is frozen is none: its system answers.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "15s",
}
READ_ONLY = {"default_transaction_read_only": "on"}

# The same from our side: a server that vanished without a word is given up after about 15 s.
_NETWORK: dict[str, Any] = {
    "tcp_user_timeout": 15_000,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}

# A role's limit must not end the statement that makes the settings, nor the look at a session. A start's options count more
# than those of a role.
_UNLIMITED = "-c statement_timeout=0"
# A setting that is ours alone. The server has its value only when our own start of the session has reached it.
_MARK = "onefold.session"
_SET_UP = """
SELECT current_setting(%s, true), current_setting('server_encoding'),
       (SELECT count(set_config(wanted.name, wanted.value, false))
        FROM unnest(%s::text[], %s::text[]) AS wanted (name, value)
        WHERE current_setting(%s, true) = %s                -- a pooler's session is somebody else's too
          AND current_setting(wanted.name, true) IS NOT NULL) -- PostgreSQL 15 and 16 have no transaction_timeout
"""
# Between the severity, which is in the server's language, and what a server says to a session that it does not open. Of what
# the network says libpq has no severity.
_SAID_BY_THE_SERVER = ":  "
# What a server says of a missing right to connect. libpq hides the SQLSTATE of a session that does not open, so a server that
# speaks another language is not understood.
_NO_CONNECT = "permission denied for database"
# What libpq says of every certificate that it refuses.
_NO_TRUST = "certificate verify failed"
# What libpq and a server that speaks English say of a login. libpq hides the SQLSTATE here, too.
_NO_LOGIN = re.compile(
    r"authentication failed for user|no pg_hba\.conf entry|pg_hba\.conf rejects|is not permitted to log in"
    r"|role \".*\" does not exist|no password supplied|valid client certificate|certificate verify failed"
    r"|does not match host name|SSL was required|SSL error: .* alert |certificate file|private key file"
)
# In libpq's sentences about TLS, where somebody answers.
_TLS = ("SSL", "certificate")
_SSL_REQUEST = struct.pack(">II", 8, 80877103)  # from PostgreSQL's protocol
# How PgBouncer refuses the options of a session that it does not pass on.
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
    """This database, or what stands before it, cannot be used."""

    exit_code = USAGE

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(Code.POSTGRES_UNFIT, message)
        self.hint = hint


class NoConnect(Unfit):
    """The role of the DSN may not open a session in this database."""

    exit_code = REFUSED

    def __init__(self, role: str, database: str) -> None:
        sentence = f"the role {role} of PostgreSQL lacks CONNECT on the database {database}"
        super().__init__(f"{sentence}: `onefold grants` prints the SQL that gives it", "")
        self.code = Code.POSTGRES_RIGHT


class NoLogin(CodedError, psycopg.OperationalError):
    """PostgreSQL does not let the client in, or the client does not trust PostgreSQL. The text is libpq's.

    A session of a service that was let in before may be let in again: a password is renewed on one side first.
    """

    exit_code = REFUSED
    hint = "Correct the user, the password or the certificates in ONEFOLD_POSTGRES_DSN."

    def __init__(self, message: str) -> None:
        super().__init__(Code.POSTGRES_LOGIN, message)


class HeldUp(psycopg.OperationalError):
    """Others hold up a statement for too long; the text is one sentence. Whether a COMMIT was done is unknown: what waits for a
    standby has been written, and is seen when that is back.
    """

    code = Code.POSTGRES_HELD_UP

    @property
    def unknown(self) -> bool:
        """Whether it may have been done all the same. The transaction of any other statement is rolled back."""
        return str(self).startswith("COMMIT ")


#: Called with what keeps a statement, again and again, and with "" when that has ended. What it raises ends the session.
Held = Callable[[str], None]


class WatchedSession(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose statements end, one way or another: a server that is silent is asked in another session what it does.

    Attributes:
        dsn: where it asks; "": the statement has `_ASK_S` seconds.
        patience_s: how long others may hold up a statement; None: as long as the server lives.
        held: see `Held`.
    """

    dsn = ""
    patience_s: float | None = PATIENCE_S
    held: Held | None = None

    def wait(self, gen: PQGen[RV], *args: Any, **more: Any) -> RV:
        """Wait for the server.

        Raises:
            HeldUp: others hold up the statement for too long.
            psycopg.OperationalError: the server does not answer. After either the session is closed.
        """
        if not self.dsn:
            return super().wait(gen, timeout=_ASK_S)
        return super().wait(self._watched(gen), *args, **more)

    def _watched(self, gen: PQGen[RV]) -> PQGen[RV]:
        """The steps of `gen`, with a look at the server whenever it has been silent for too long."""
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
    """What the server does about one statement."""

    def __init__(self, session: WatchedSession) -> None:
        self._session = session
        self._free = self._heard = time.monotonic()  # `_free`: until then nobody is known to have held it up
        self._every_s = _LOOK_S if session.patience_s is None else min(_LOOK_S, session.patience_s)
        self._said = self._silent = False

    def after(self, answered: bool) -> None:
        """Raises psycopg.OperationalError when there is nothing left to wait for."""
        now = time.monotonic()
        if answered:
            self._heard = now
        elif now - self._heard > self._every_s:
            self._ask(now)
            self._heard = time.monotonic()

    def end(self) -> None:
        """The statement has ended."""
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
            # The answer may be on its way; a busy machine may be late with the other session.
            if self._silent:
                raise
            self._silent = True
            return
        self._silent = False
        if not reason:
            self._free = now
            self.end()  # the server works at it again
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
    """A session with `SETTINGS`, and with `settings` over them.

    Args:
        application: what the server's own views show it as.
        patience_s, held: see `WatchedSession`.

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
    """The same for an event loop, which has time limits of its own."""
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
    """Close the socket of a connection, from any thread, so that whoever waits for an answer gets an error."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def keeps(dsn: str, pid: int) -> str | None:
    """What keeps the statement of a session, in one sentence; "" while the server works at it, None when it does nothing.

    Raises:
        psycopg.OperationalError: the server does not answer.
    """
    try:
        with closing(WatchedSession.connect(dsn, autocommit=True, **_start(dsn, "onefold looks", "", _ASK_S))) as asked:
            # ALTER ROLE ... SET role: whoever is of another role does not see what the login's sessions do.
            asked.execute("SET ROLE NONE")
            found = asked.execute(_ACTIVITY, (pid,)).fetchone()
            return None if found is None else _sentence(*found)
    except psycopg.Error as error:
        reason = _first_line(error)
        if error.sqlstate is not None or _SAID_BY_THE_SERVER in reason:
            return ""  # it answers, and only to this session not: too many clients
    # Outside of the handler: an error that is kept would keep the connection open that was not made.
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
    """What libpq starts a session with. Options of the user's are kept, for what they set is not always ours."""
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
    """Is it a session of ours alone, with a database that holds all texts?"""
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
    """Why the server's certificate is refused, found by another handshake; "" if that finds no fault."""
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
    """What became of a session that was not opened: for a sentence that begins with the server's name."""
    reason = _first_line(error)
    refused = _SAID_BY_THE_SERVER in reason or any(word in reason for word in _TLS)
    return "opens no session" if refused else "does not answer"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
