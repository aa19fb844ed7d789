"""What can stop the sink, sorted by what has to happen next.

Everything that is not here (a lost connection, a second deadlock, a lost checkpoint, a broker that went away) has one
answer: stop the query, read the positions from Postgres again, go on from there.
"""

from __future__ import annotations

import re
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
        super().__init__("another sink has landed a part of the batch")
        self.start_offsets = start_offsets


class Misconfigured(SinkError):
    """A contract, a merge or a migration is wrong: nothing but an edit can help."""

    exit_code = USAGE


class Refused(SinkError):
    """What Kafka and Postgres hold is not what this sink would go on with: going on would lose or mix data. A human decides."""

    exit_code = REFUSED


# 22: a value that the column cannot hold; 23: a constraint that the row breaks. The same rows fail again for ever.
_DATA_ERROR_CLASSES = ("22", "23")


def blames_a_row(error: psycopg.Error) -> bool:
    """Is it a row's own fault, so that trying again is useless and the row has to be found and set aside?"""
    return (error.sqlstate or "")[:2] in _DATA_ERROR_CLASSES


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
