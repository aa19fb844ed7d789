"""What can stop the sink, sorted by what has to happen next.

Everything that is not here (a lost connection, a second deadlock, a lost checkpoint, a broker that went away) has one
answer: stop the query, read the positions from Postgres again, go on from there.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from onefold.exit_codes import FAILED, REFUSED, UNAVAILABLE, USAGE

if TYPE_CHECKING:
    import psycopg


class SinkError(Exception):
    """One clear sentence for the user. `exit_code` is what the process ends with when it cannot go on."""

    exit_code = FAILED


class Waiting(SinkError):
    """Something that the sink needs is not there yet: Kafka, Postgres or a topic. Tried again until the deadline."""

    exit_code = UNAVAILABLE


class Unauthenticated(Waiting):
    """Kafka refuses the client's login, certificate or protocol: a start ends with it. A query that has run goes on trying."""


class Rewind(SinkError):
    """The batch does not continue what Postgres holds: start again from the positions in Postgres."""


class Overlap(SinkError):
    """A part of the batch was landed already, and its rows stand for the batch as a whole: reduce what is left, again.

    `start_offsets` holds, per partition of the batch, the offset from which on its records are new.
    """

    def __init__(self, start_offsets: dict[tuple[str, int], int]) -> None:
        super().__init__("another sink has written a part of the batch")
        self.start_offsets = start_offsets


class Misconfigured(SinkError):
    """A contract, a merge or a migration is wrong: nothing but an edit can help."""

    exit_code = USAGE


class Refused(SinkError):
    """What Kafka and Postgres hold is not what this sink would go on with: going on would lose or mix data. A human decides."""

    exit_code = REFUSED


class Stopped(Refused):
    """PostgreSQL refuses a batch, and single rows are not the reason. The sink has written nothing of it, and tries again."""


class Verdict(Enum):
    """What an error of PostgreSQL asks for."""

    RETRY = "it passes by itself"
    ROW = "a row is to blame"
    STOP = "a statement, a table or a privilege is to blame"
    UNKNOWN = "tried again with growing pauses"


# By the first two characters of the SQLSTATE (PostgreSQL's appendix A). A class that is not listed is UNKNOWN.
_BY_CLASS = {
    "08": Verdict.RETRY,  # the connection
    "09": Verdict.ROW,  # a trigger's action
    "0A": Verdict.STOP,  # a feature that the server does not have
    "20": Verdict.ROW,  # PL/pgSQL: CASE without a branch
    "21": Verdict.ROW,  # two rows of one statement for one key
    "22": Verdict.ROW,  # a value
    "23": Verdict.ROW,  # a constraint; a partition that does not exist
    "25": Verdict.RETRY,  # the state of the transaction: a server that is read-only during a failover
    "26": Verdict.RETRY,  # a prepared statement that a pooler has dropped
    "27": Verdict.ROW,  # a trigger that changes the row under its statement
    "28": Verdict.RETRY,  # the login
    "2F": Verdict.ROW,  # a function
    "38": Verdict.ROW,  # a function in another language
    "39": Verdict.ROW,  # what such a function gives back
    "3D": Verdict.RETRY,  # the database
    "3F": Verdict.STOP,  # a schema that does not exist
    "40": Verdict.RETRY,  # deadlock, serialization
    "42": Verdict.STOP,  # a statement that does not fit the tables, a missing privilege
    "44": Verdict.ROW,  # WITH CHECK OPTION
    "53": Verdict.RETRY,  # memory, disk, connections
    "54": Verdict.ROW,  # a limit: a text that no index entry holds, a value that is nested too deep
    "55": Verdict.RETRY,  # a lock
    "57": Verdict.RETRY,  # a time-out, a shutdown
    "58": Verdict.RETRY,  # the operating system
    "P0": Verdict.ROW,  # RAISE EXCEPTION, ASSERT
}
_BY_STATE = {
    "25001": Verdict.STOP,  # CREATE INDEX CONCURRENTLY, VACUUM: a schema file is one transaction, at every start
    "55006": Verdict.STOP,  # an object in use: by others, or by the statements before in the same schema file
    "55P04": Verdict.STOP,  # a value of an enum that the same schema file has added
    "XX001": Verdict.STOP,  # a damaged page of a table: the rows that belong there are not to blame
    "XX002": Verdict.STOP,  # of an index
    "58P01": Verdict.STOP,  # a file that is not there, as of an extension that the server does not have
    "2200H": Verdict.STOP,  # a sequence has no number left, for no row
    "55000": Verdict.UNKNOWN,  # an object is not in the state that the statement needs: for a moment, or until it is mended
}
# Functions of PostgreSQL's source, which an error names in every language of the server. RAISE may give any SQLSTATE to a row;
# 42501 is a policy's word on a row as well as a missing privilege.
_RAISE = "exec_stmt_raise"
_POLICY = "ExecWithCheckOptions"


def verdict(error: psycopg.Error) -> Verdict:
    """What `error` asks for: the one table of SQLSTATEs."""
    import psycopg  # who has an error of it has it; `onefold check` has neither

    state = error.sqlstate
    if state is None:  # an error of the client's side
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return Verdict.RETRY if lost else Verdict.UNKNOWN
    found = _BY_STATE.get(state) or _BY_CLASS.get(state[:2], Verdict.UNKNOWN)
    if error.diag.source_function in (_RAISE, _POLICY) and found is not Verdict.RETRY:
        return Verdict.ROW
    return found


def blames_a_row(error: psycopg.Error) -> bool:
    """Is it a row's own fault, so that trying again is useless and the row has to be found and set aside?"""
    return verdict(error) is Verdict.ROW


def may_blame_a_row(error: psycopg.Error) -> bool:
    """May it be a row's fault? Of a trigger, or an unknown class, only a look at single rows tells."""
    found = verdict(error)
    inside_a_function = error.diag.context is not None
    return found in (Verdict.ROW, Verdict.UNKNOWN) or (found is Verdict.STOP and inside_a_function)


# Spark wraps what a task's Python has raised into a text that begins with a sentence of its own, and says what it was below.
_TRACE = "Traceback (most recent call last):"

# Java wraps what Kafka's client has run into; the reason comes last.
_KAFKA = re.compile(r"org\.apache\.kafka\.common\.(?:\w+\.)*(\w+Exception)(?:: (.+))?")
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*(\w+)(?:: (.+))?$", re.MULTILINE)


def sentence(error: BaseException) -> str:
    """The first line of an error, for a status file or a log line: never a stack trace. Of one in a task of Spark what the task
    has run into, of one of Kafka's Java client its cause."""
    if _TRACE not in str(error) and (kafka := _KAFKA.search(str(error))) is not None:
        name, reason = (_CAUSE.findall(str(error)) or [kafka.groups(default="")])[-1]
        return f"Kafka's client in Spark: {name}: {reason}".removesuffix(": ")
    before, trace, raised = str(error).rpartition(_TRACE)
    lines = [line for line in raised.splitlines() if line.strip() and not (trace and line[:1].isspace())]
    lines = lines or before.strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
