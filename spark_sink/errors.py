"""What stops the sink beside `onefold.processor.core.errors`, sorted by the reaction.

Of these the sink raises `Retriable` if Kafka, PostgreSQL or a topic is not there yet, and tries again until the deadline;
`Misconfigured` if a schema, a merge or a migration needs an edit; and `Refused` if the records in Kafka do not continue the rows.

Every other error (a lost connection, a second deadlock, a lost checkpoint, a stopped broker) has the same reaction: stop the
query, read the positions from Postgres, and continue from the positions.
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
    """The batch does not continue what Postgres holds: start again from the positions in Postgres."""


class Overlap(CodedError):
    """A part of the batch is in Postgres, and the batch's rows are reduced from the whole batch: reduce the rest again.

    `start_offsets` holds, per partition of the batch, the offset of the first new record.
    """

    def __init__(self, start_offsets: dict[tuple[str, int], int]) -> None:
        super().__init__(Code.POSITIONS_MOVED, "another sink has written a part of the batch")
        self.start_offsets = start_offsets
        self.args = (start_offsets,)  # for pickle, which calls the class with them


class Stopped(Refused):
    """PostgreSQL refuses a batch, not for single rows. The sink has written no row of the batch, or of the part that it names,
    and tries again.
    """


class ErrorReaction(Enum):
    """The reaction to an error of PostgreSQL."""

    RETRY = "it passes by itself"
    ROW = "a row is to blame"
    STOP = "a statement, a table or a privilege is to blame"
    UNKNOWN = "tried again with growing pauses"


# By the first two characters of the SQLSTATE (PostgreSQL's appendix A). A class that is not listed is UNKNOWN.
_BY_CLASS = {
    "08": ErrorReaction.RETRY,  # the connection
    "09": ErrorReaction.ROW,  # a trigger's action
    "0A": ErrorReaction.STOP,  # a feature that the server does not have
    "20": ErrorReaction.ROW,  # PL/pgSQL: CASE without a branch
    "21": ErrorReaction.ROW,  # two rows of one statement for one key
    "22": ErrorReaction.ROW,  # a value
    "23": ErrorReaction.ROW,  # a constraint; a partition that does not exist
    "25": ErrorReaction.RETRY,  # the state of the transaction: a server that is read-only during a failover
    "26": ErrorReaction.RETRY,  # a prepared statement that a pooler has dropped
    "27": ErrorReaction.ROW,  # a trigger that changes the row under its statement
    "28": ErrorReaction.RETRY,  # the login
    "2F": ErrorReaction.ROW,  # a function
    "38": ErrorReaction.ROW,  # a function in another language
    "39": ErrorReaction.ROW,  # the result of a function in another language
    "3D": ErrorReaction.RETRY,  # the database
    "3F": ErrorReaction.STOP,  # a schema that does not exist
    "40": ErrorReaction.RETRY,  # deadlock, serialization
    "42": ErrorReaction.STOP,  # a statement that does not fit the tables, a missing privilege
    "44": ErrorReaction.ROW,  # WITH CHECK OPTION
    "53": ErrorReaction.RETRY,  # memory, disk, connections
    "54": ErrorReaction.ROW,  # a limit: a text that no index entry holds, a value that is nested too deep
    "55": ErrorReaction.RETRY,  # a lock
    "57": ErrorReaction.RETRY,  # a time-out, a shutdown
    "58": ErrorReaction.RETRY,  # the operating system
    "P0": ErrorReaction.ROW,  # RAISE EXCEPTION, ASSERT
}
_BY_STATE = {
    "25001": ErrorReaction.STOP,  # CREATE INDEX CONCURRENTLY, VACUUM: a schema file is one transaction, at every start
    "55006": ErrorReaction.STOP,  # an object in use: by others, or by the statements before in the same schema file
    "55P04": ErrorReaction.STOP,  # a value of an enum that the same schema file has added
    "XX001": ErrorReaction.STOP,  # a damaged page of a table, not the fault of the batch's rows
    "XX002": ErrorReaction.STOP,  # a damaged page of an index
    "58P01": ErrorReaction.STOP,  # a missing file, as of an extension that the server lacks
    "2200H": ErrorReaction.STOP,  # a sequence has no number left, for no row
    "55000": ErrorReaction.UNKNOWN,  # an object in a wrong state: for a moment, or until a fix
}
# Functions of PostgreSQL's source, which an error names in every language of the server. RAISE may use any SQLSTATE;
# 42501 means a row that a policy refuses, and also a missing privilege.
_RAISE = "exec_stmt_raise"
_POLICY = "ExecWithCheckOptions"


def verdict(error: psycopg.Error) -> ErrorReaction:
    """The reaction to `error`, by the table of SQLSTATEs."""
    import psycopg  # an error of psycopg implies psycopg; `onefold check` runs without

    state = error.sqlstate
    if state is None:  # an error of the client's side
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return ErrorReaction.RETRY if lost else ErrorReaction.UNKNOWN
    found = _BY_STATE.get(state) or _BY_CLASS.get(state[:2], ErrorReaction.UNKNOWN)
    if error.diag.source_function in (_RAISE, _POLICY) and found is not ErrorReaction.RETRY:
        return ErrorReaction.ROW
    return found


def blames_a_row(error: psycopg.Error) -> bool:
    """Whether a row causes the error: a repetition is useless, and the sink has to find and reject the row."""
    return verdict(error) is ErrorReaction.ROW


def may_blame_a_row(error: psycopg.Error) -> bool:
    """Whether a row may cause the error. For a trigger, or an unknown class, only a test of single rows decides."""
    found = verdict(error)
    inside_a_function = error.diag.context is not None
    return found in (ErrorReaction.ROW, ErrorReaction.UNKNOWN) or (found is ErrorReaction.STOP and inside_a_function)


# Java wraps the exception of Kafka's client; the reason comes last.
_KAFKA = re.compile(r"org\.apache\.kafka\.common\.(?:\w+\.)*(\w+Exception)(?:: (.+))?")
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*(\w+)(?:: (.+))?$", re.MULTILINE)


# A task that failed too often, with the host and the number of its executor; the executor of a local master is "driver".
_TASK = re.compile(r"Lost task .{0,200}? \((\S+) executor (\S+)\): (?:[\w$]+\.)*(.+)")
_STACK_OF_THE_DRIVER = "\nDriver stacktrace:"
_CALL = re.compile(r"An error occurred while calling .+\n: (?:[\w$]+\.)*(.+)")


def sentence(error: BaseException) -> str:
    """The first line of an error, for a status file or a log line, without a stack trace. For an error in Spark's JVMs, or of
    Kafka's Java client, the cause, and the executor that has met it."""
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
