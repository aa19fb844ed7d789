"""Two sinks on the same tables, each with a JVM of its own: neither stops the other one, and one continues alone."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.spark_sink.spark.query import SinkQuery
from tests.support.made_up_domain import MadeUp
from tests.support.sink import LANDED_IN_S
from tests.support.sink_children import SinkOf
from tests.support.waiting import eventually

_WRITERS = "SELECT DISTINCT writer FROM onefold.ledger WHERE last_offset IS NOT NULL"
_EVERY_S = 0.05


@pytest.mark.promise("two-sinks-in-time")
@pytest.mark.usefixtures("made_up_topics")
def test_a_sink_continues_when_the_one_beside_it_is_killed(
    made_up: MadeUp,
    query: Callable[..., SinkQuery],
    sink_of: SinkOf,
    database: str,
    reader: psycopg.Connection[Any],
    tmp_path: Path,
) -> None:
    """Both have written, and neither has started its query again: the sink that is second at a batch leaves the batch out."""
    survivor, killed = query(writer="sink-2"), sink_of(made_up.name, tmp_path)()
    writers, stop = set[str](), threading.Event()

    def produce() -> None:
        number = 0
        while not stop.wait(_EVERY_S):
            made_up.send(range(number, number := number + 5))

    def both_write() -> bool:
        assert survivor.failure() is None
        writers.update(writer for (writer,) in reader.execute(_WRITERS))
        return writers >= {"sink-1", "sink-2"}

    survivor.start()
    producing = threading.Thread(target=produce)
    producing.start()
    try:
        eventually(both_write, LANDED_IN_S, "both sinks write")
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait(20)
        before = made_up.sent
        eventually(lambda: made_up.sent > before + 50, 20, "records arrive after the kill")
    finally:
        stop.set()
        producing.join(20)
    eventually(lambda: made_up.is_landed(database), LANDED_IN_S, "the other sink writes everything")
    made_up.check(reader)
    assert survivor.failure() is None, "it is the query from before the kill"
    assert killed.log.read_text(encoding="utf-8").count("writing from the positions in Postgres") == 1
