"""Waits until nothing is left to fold or to land, as a program of its own, with the environment of a stack's user.

`onefold status`, asked again and again, would say the same, and take a core from those who are waited for: it starts Python, and
asks the servers for all else that it shows.
"""

import sys
import time

import psycopg
from confluent_kafka import KafkaException

from onefold.operate import lag
from onefold.operate.errors import UserError
from onefold.operate.settings import load

LOOK_AGAIN_S = 0.25


def main(deadline_s: float) -> str | None:
    """What is left at the deadline, which is what `SystemExit` makes an exit code of."""
    deadline = time.monotonic() + deadline_s
    while left := _left():
        if time.monotonic() > deadline:
            return left
        time.sleep(LOOK_AGAIN_S)
    return None


def _left() -> str:
    """Of which pipelines, or why nobody knows: a server may be away for the moment. "" when all is drained."""
    try:
        found = lag.of_all(load())
    except (UserError, psycopg.Error, KafkaException) as error:
        return str(error)
    return ", ".join(f"{domain}: {now}" for domain, now in found.items() if now.events != 0)


if __name__ == "__main__":
    raise SystemExit(main(float(sys.argv[1])))
