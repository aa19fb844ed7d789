"""The errors that stop the sink, in addition to `onefold.processor.core.errors`, sorted by the reaction.

From `onefold.processor.core.errors`, the sink raises `Retriable` if Kafka, PostgreSQL or a topic is not available yet, and
retries until the deadline. The sink raises `Misconfigured` if a schema, a merge or a migration needs an edit, and `Refused` if
the records in Kafka do not continue the rows.

After any further error (a lost connection, a second deadlock, a lost checkpoint, a stopped broker), the sink stops the query,
reads the positions from Postgres, and continues from the positions.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from onefold.error_codes import Code, CodedError, first_line
from onefold.processor.core.errors import Refused

if TYPE_CHECKING:
    import psycopg


class Rewind(CodedError):
    """The batch does not continue the positions in Postgres. The query must restart from the stored positions."""


class Overlap(CodedError):
    """Postgres already has a part of a batch with reduced rows. The sink must reduce the remaining records again.

    `start_offsets` holds, per partition of the batch, the offset of the first new record.
    """

    def __init__(self, start_offsets: dict[tuple[str, int], int]) -> None:
        super().__init__(Code.POSITIONS_MOVED, "another sink has written a part of the batch")
        self.start_offsets = start_offsets
        self.args = (start_offsets,)  # pickle calls the class with the args


class Stopped(Refused):
    """PostgreSQL refuses a batch, and no single row is the cause. The sink has written no row of the batch, or of the part
    named in the message, and retries.
    """


class ErrorReaction(Enum):
    """The reaction to an error of PostgreSQL."""

    RETRY = "it passes by itself"
    ROW = "a row is to blame"
    STOP = "a statement, a table or a privilege is to blame"
    UNKNOWN = "tried again with growing pauses"


# By the first two characters of the SQLSTATE (PostgreSQL's appendix A). An unlisted class is UNKNOWN.
_BY_CLASS = {
    "08": ErrorReaction.RETRY,  # the connection
    "09": ErrorReaction.ROW,  # a trigger's action
    "0A": ErrorReaction.STOP,  # a feature missing in the server
    "20": ErrorReaction.ROW,  # PL/pgSQL: CASE without a branch
    "21": ErrorReaction.ROW,  # two rows of one statement for one key
    "22": ErrorReaction.ROW,  # a value
    "23": ErrorReaction.ROW,  # a constraint; a missing partition
    "25": ErrorReaction.RETRY,  # the state of the transaction: a server is read-only during a failover
    "26": ErrorReaction.RETRY,  # a prepared statement dropped by a pooler
    "27": ErrorReaction.ROW,  # a trigger changes the row of the running statement
    "28": ErrorReaction.RETRY,  # the login
    "2F": ErrorReaction.ROW,  # a function
    "38": ErrorReaction.ROW,  # a function in another language
    "39": ErrorReaction.ROW,  # the result of a function in another language
    "3D": ErrorReaction.RETRY,  # the database
    "3F": ErrorReaction.STOP,  # a missing schema
    "40": ErrorReaction.RETRY,  # deadlock, serialization
    "42": ErrorReaction.STOP,  # a statement does not fit the tables, a missing privilege
    "44": ErrorReaction.ROW,  # WITH CHECK OPTION
    "53": ErrorReaction.RETRY,  # memory, disk, connections
    "54": ErrorReaction.ROW,  # a limit: a text too long for an index entry, a value nested too deep
    "55": ErrorReaction.RETRY,  # a lock
    "57": ErrorReaction.RETRY,  # a time-out, a shutdown
    "58": ErrorReaction.RETRY,  # the operating system
    "P0": ErrorReaction.ROW,  # RAISE EXCEPTION, ASSERT
}
_BY_STATE = {
    "25001": ErrorReaction.STOP,  # CREATE INDEX CONCURRENTLY, VACUUM: a schema file is one transaction, at every start
    "55006": ErrorReaction.STOP,  # an object in use: by another session, or by earlier statements of the same schema file
    "55P04": ErrorReaction.STOP,  # an enum value added in the same schema file
    "XX001": ErrorReaction.STOP,  # a damaged page of a table, not the fault of the batch's rows
    "XX002": ErrorReaction.STOP,  # a damaged page of an index
    "58P01": ErrorReaction.STOP,  # a missing file, for example of a missing extension
    "2200H": ErrorReaction.STOP,  # an exhausted sequence has no number for any row
    "55000": ErrorReaction.UNKNOWN,  # an object in a wrong state: for a moment, or until a fix
}
# Functions of PostgreSQL's source; an error names the function whatever the server's language. RAISE may use any SQLSTATE.
# 42501 means a row refused by a policy, or a missing privilege.
_RAISE = "exec_stmt_raise"
_POLICY = "ExecWithCheckOptions"


def verdict(error: psycopg.Error) -> ErrorReaction:
    """The reaction to `error`, by the table of SQLSTATEs."""
    import psycopg  # an error of psycopg implies psycopg; `onefold check` runs without

    state = error.sqlstate
    if state is None:  # an error of the client library
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return ErrorReaction.RETRY if lost else ErrorReaction.UNKNOWN
    found = _BY_STATE.get(state) or _BY_CLASS.get(state[:2], ErrorReaction.UNKNOWN)
    if error.diag.source_function in (_RAISE, _POLICY) and found is not ErrorReaction.RETRY:
        return ErrorReaction.ROW
    return found


def blames_a_row(error: psycopg.Error) -> bool:
    """Whether a row causes the error. A retry is then useless, and the sink must find and reject the row."""
    return verdict(error) is ErrorReaction.ROW


def may_blame_a_row(error: psycopg.Error) -> bool:
    """Whether a row may cause the error. For a function or an unknown class, only a test of single rows decides."""
    found = verdict(error)
    inside_a_function = error.diag.context is not None
    return found in (ErrorReaction.ROW, ErrorReaction.UNKNOWN) or (found is ErrorReaction.STOP and inside_a_function)


# Java wraps the exception of Kafka's client. The reason comes last.
_KAFKA = re.compile(r"org\.apache\.kafka\.common\.(?:\w+\.)*(\w+Exception)(?:: (.+))?")
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*(\w+)(?:: (.+))?$", re.MULTILINE)


# A task that failed too often, with the host and the number of the executor. The executor of a local master is "driver".
_TASK = re.compile(r"Lost task .{0,200}? \((\S+) executor (\S+)\): (?:[\w$]+\.)*(.+)")
_STACK_OF_THE_DRIVER = "\nDriver stacktrace:"
_CALL = re.compile(r"An error occurred while calling .+\n: (?:[\w$]+\.)*(.+)")


def sentence(error: BaseException) -> str:
    """The first line of an error, for a status file or a log line, without a stack trace. For an error in Spark's JVMs, or of
    Kafka's Java client: the cause and the executor."""
    text = str(error)
    task, kafka = _TASK.search(text), _KAFKA.search(text)
    place = f"executor {task[2]} on {task[1]}" if task is not None and task[2] != "driver" else ""
    if kafka is not None:
        name, reason = (_causes(text[kafka.start() :]) or [(kafka[1], kafka[2] or "")])[-1]
        return f"Kafka's client in Spark{place and f', {place}'}: {name}: {reason}".removesuffix(": ")
    if found := task or _CALL.match(text):
        causes = _causes(text[found.start() :])
        said = ": ".join(filter(None, causes[-1])) if causes else found[found.re.groups]
        return f"Spark{place and f', {place}'}: {said}"
    return first_line(error)


def _causes(text: str) -> list[tuple[str, str]]:
    return _CAUSE.findall(text.partition(_STACK_OF_THE_DRIVER)[0])
