"""Waits until nothing is left to fold or to land, as a program of its own, with the environment of a stack's user.

`onefold status`, asked again and again, would say the same, and take a core from those who are waited for: it starts Python, and
asks the servers for all else that it shows.
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
    """Whether all pipelines are. A server that is away for the moment is asked again."""
    try:
        return all(now.events == 0 for now in lag.of_all(load()).values())
    except (UserError, psycopg.Error, KafkaException):
        return False


def what_is_left() -> str:
    """Of each pipeline that is not drained its offsets, and what they hold."""
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
