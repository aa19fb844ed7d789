"""Waits until nothing is left to fold or to land, as a program of its own, with the environment of a stack's user.

`onefold status`, asked again and again, would say the same, and take a core from those who are waited for: it starts Python, and
asks the servers for all else that it shows.
"""

import sys

import psycopg
from confluent_kafka import KafkaException

from onefold.operate import lag
from onefold.operate.errors import UserError
from onefold.operate.settings import load
from tests.support.waiting import eventually

LOOK_AGAIN_S = 0.25


def is_drained() -> bool:
    """Whether all pipelines are. A server that is away for the moment is asked again."""
    try:
        return all(now.events == 0 for now in lag.of_all(load()).values())
    except (UserError, psycopg.Error, KafkaException):
        return False


if __name__ == "__main__":
    eventually(is_drained, float(sys.argv[1]), "drained", LOOK_AGAIN_S)
