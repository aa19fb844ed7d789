"""The headers by which tracing systems follow an event are on everything that is made of it."""

from dataclasses import replace
from typing import Any

import pytest

from onefold.processor.core.values import Event, Output
from onefold.processor.loading import topology_of
from onefold.processor.testing import TopologyDriver

pytestmark = pytest.mark.promise("traces")

RUNNER = topology_of("runner")
PARENT, STATE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", b"vendor=1"
TRACE = [("traceparent", PARENT), ("tracestate", STATE)]
UPDATE = {"user_id": 1, "distance_meters": 10, "timestamp_utc": 30_000, "sequence_id": 1, "run_id": 1}


def traces(driver: TopologyDriver, topic: str) -> list[dict[str, Any]]:
    """Of each record, those of its headers that are not the processor's own."""
    found = driver.records(topic)
    return [
        {name: value for name, value in headers.items() if not name.startswith("onefold-")} for *_, headers in found
    ]


def test_every_output_of_a_traced_record_is_traced_and_no_other_header_comes_along() -> None:
    driver = TopologyDriver(RUNNER)
    driver.send("runner.updates", UPDATE, headers=[("colour", b"red"), *TRACE])
    driver.send("runner.updates", {**UPDATE, "sequence_id": 2})
    driver.run()
    assert traces(driver, "runner.messages") == [dict(TRACE), {}]
    # Where the latest row wins both have become one record, of the second.
    assert traces(driver, "runner.stats")[-1] == {}


def test_a_dead_letter_is_traced() -> None:
    driver = TopologyDriver(RUNNER)
    driver.send("runner.updates", b"no update", headers=TRACE)
    driver.run()
    assert traces(driver, "runner.updates.dead") == [dict(TRACE)]


def test_a_copy_in_the_partition_of_its_key_is_traced_and_what_is_made_of_it() -> None:
    driver = TopologyDriver(RUNNER, partitions=2)
    for partition in range(2):  # one of them is the wrong one
        driver.send("runner.updates", {**UPDATE, "sequence_id": 1 + partition}, partition=partition, headers=TRACE)
    driver.run()
    assert traces(driver, "runner.updates") == [dict(TRACE)] * 3
    assert dict(TRACE) in traces(driver, "runner.messages")
    assert {} not in traces(driver, "runner.messages")


def test_what_a_handler_says_itself_stands() -> None:
    def handle(state: Any, event: Event) -> Any:
        message = {
            name: UPDATE[name] for name in ("user_id", "distance_meters", "timestamp_utc", "sequence_id", "run_id")
        }
        return state, [
            Output("runner.messages", message, headers=[("traceparent", b"mine")]),
            Output("runner.messages", message, headers=[("colour", b"red")]),
            Output("runner.messages", message),
        ]

    driver = TopologyDriver(replace(RUNNER, handle=handle))
    driver.send("runner.updates", UPDATE, headers=TRACE)
    driver.run()
    mine, coloured, plain = traces(driver, "runner.messages")
    assert mine == {"traceparent": b"mine", "tracestate": STATE}
    assert coloured == {"colour": b"red", **dict(TRACE)}
    assert plain == dict(TRACE)
    sources = [headers["onefold-source"] for *_, headers in driver.records("runner.messages")]
    assert sources == [b"runner.updates/0/0"] * 3


@pytest.mark.parametrize("value", [None, b"", b"x" * 513])
def test_what_no_tracing_system_would_send_is_left_out(value: bytes | None) -> None:
    """An output has to fit where its input did."""
    driver = TopologyDriver(RUNNER)
    driver.send("runner.updates", UPDATE, headers=[("traceparent", PARENT), ("tracestate", value)])
    driver.run()
    assert traces(driver, "runner.messages") == [{"traceparent": PARENT}]
