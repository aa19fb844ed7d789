"""All services log in one way, and libraries with them."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.rooms import ROOT

PROGRAM = """
import logging
from onefold.operate import logs
from onefold.spark_sink.errors import Waiting
from onefold.spark_sink.supervisor import QuerySupervisor
import structlog

class Query:
    name, landed = "made_up", 0
    def start(self): raise Waiting("no Kafka")
    def failure(self): return None

logs.configure({log_format!r})
QuerySupervisor(Query(), 60.0, lambda: 1.0).tick()
structlog.get_logger().warning("a processor's", reason="no Kafka")
logging.getLogger("library").warning("%s of a library", "a line")
"""


def logged(log_format: str) -> list[str]:
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    program = PROGRAM.format(log_format=log_format)
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, env=here)
    return ran.stdout.splitlines()


def test_in_json_every_line_has_the_same_fields() -> None:
    """For programs: what happened, when, and how bad it is."""
    lines = [json.loads(line) for line in logged("json")]
    assert [line["event"] for line in lines] == [
        "made_up: no Kafka; starting again from Postgres",
        "a processor's",
        "a line of a library",
    ]
    assert all(line.keys() >= {"event", "level", "timestamp"} and line["level"] == "warning" for line in lines)


@pytest.mark.parametrize("number", [0, 1, 2], ids=["sink", "processor", "library"])
def test_for_people_every_line_begins_alike(number: int) -> None:
    words = logged("human")[number].split()
    assert words[0].endswith("Z")
    assert words[1] == "[warning"
