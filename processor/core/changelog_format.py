"""The format number of a task's changelog, and the refusal of a newer Onefold's format.

The progress record has the number for the whole changelog partition, since every transaction writes the progress record.
A record without a number has format 1: release 0.1.0 wrote no number.

A reader ignores unknown fields. An added field therefore needs no new number, unless a loss of the field would matter when
an earlier version writes the next record. Other changes need a new number: another meaning of a field, another
kind of record, another encoding of states.
"""

from collections.abc import Mapping
from typing import Any

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused

#: The greatest known format. A task that decides by Kafka transactions writes format 1, a task with a decision log format 2,
#: since a version without decision logs must not continue from such a changelog.
FORMAT = 2
ELASTIC, DECIDED = 1, 2
#: The record in place of progress during a reset: no task may continue from here. No version will have this number, so
#: versions that do not know the field `resetting` refuse the record, too.
RESETTING = {"version": 2**31 - 1, "resetting": True}


def check_format(body: Mapping[str, Any], what: str) -> None:
    """Check the format number of a stored JSON object, before any other field is read.

    Raises:
        Refused: a newer Onefold wrote `what`, or a reset of the pipeline is incomplete.
        ValueError: the number is invalid.
    """
    if body.get("resetting") is True:
        raise Refused(
            Code.RESET_INCOMPLETE, f"{what} is of a reset that is incomplete: run `onefold reset` of the pipeline again"
        )
    number = body.get("version", 1)
    if type(number) is not int or number < 1:
        raise ValueError(f"{number!r} is no version")
    if number > FORMAT:
        raise Refused(
            Code.NEWER_VERSION,
            f"{what} was written by a newer Onefold, in format {number}, and this one knows formats up to {FORMAT}: "
            f"start the newer one again. See `onefold docs upgrade`",
        )


def other_partitions(states: object, pipeline: str, topics: int) -> str:
    """Return a clause that a pipeline's states and topics differ in their number of partitions, or "" if they agree.

    Args:
        states: the number in a progress record; None in a record from before this field, for which the result is "".
        topics: the present number of partitions of the inputs and the changelog.
    """
    if type(states) is not int or states == topics:
        return ""
    return f"the states of {pipeline} are of {states} partitions, and its topics have {topics}: keys would move away from them"
