"""Program that waits until all records are processed and written, with the environment of a stack's user.

Repeated `onefold status` commands would take a core from the awaited services: each starts a Python, and queries much more.
"""

import sys
from contextlib import suppress

import psycopg
from confluent_kafka import KafkaException

from onefold.config.errors import UserError
from onefold.config.settings import load
from onefold.operate import lag, offsets
from tests.support.waiting import eventually

LOOK_AGAIN_S = 0.25


def is_drained() -> bool:
    """Whether all pipelines are drained. An unreachable server counts as not drained."""
    try:
        return all(now.events == 0 for now in lag.of_all(load()).values())
    except (UserError, psycopg.Error, KafkaException):
        return False


def what_is_left() -> str:
    """Remaining offsets and lag of each pipeline that is not drained."""
    behind = offsets.behind_of_all(load())
    if behind is None:
        return "Kafka does not answer"
    waits = {name: now for name, now in lag.of_all(load()).items() if now.events != 0}
    return "\n".join(f"{name}: {behind.get(name)} {now}" for name, now in waits.items())


if __name__ == "__main__":
    try:
        eventually(is_drained, float(sys.argv[1]), "drained", LOOK_AGAIN_S)
    except AssertionError:
        with suppress(UserError, psycopg.Error, KafkaException):
            sys.stdout.write(what_is_left())
        raise
