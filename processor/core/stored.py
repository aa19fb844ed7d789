"""Which format a task's changelog is in, and refusing the one of a newer Onefold.

The progress record carries the number, and it stands for the whole changelog partition: whatever a transaction writes
there, it writes the progress too. A record without a number is of format 1: 0.1.0 wrote none.

A reader leaves out fields that it does not know, so what is only added needs no new number, as long as nothing is lost
when a version that does not know the field writes the record next. All else is a new number: a field that means
something else, a record of a new kind, another way to write a state.
"""

from collections.abc import Mapping
from typing import Any

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused

#: The greatest that this version knows. What a task decides by Kafka transactions is in format 1, what a decision log
#: decides in format 2: a version that does not know the log must not go on from there.
FORMAT = 2
ELASTIC, DECIDED = 1, 2
#: What stands in the place of progress while a pipeline is being started over: nobody may go on from there. Its number is one
#: that no version will have, so that those refuse it, too, that do not know the word.
RESETTING = {"version": 2**31 - 1, "resetting": True}


def check_format(body: Mapping[str, Any], what: str) -> None:
    """Look at the number in a stored JSON object, before anything else of it is believed.

    Raises:
        Refused: a newer Onefold wrote `what`, or the pipeline is being started over.
        ValueError: the number is none.
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
    """That the states and the topics of a pipeline have different numbers of partitions, in a sentence without its end; or "".

    Args:
        states: the number in a progress record; None in a record that was written before this field, of which nothing is said.
        topics: the number of the inputs and the changelog now.
    """
    if type(states) is not int or states == topics:
        return ""
    return f"the states of {pipeline} are of {states} partitions, and its topics have {topics}: keys would move away from them"
