"""A pipeline that feeds itself: an output that is an input too. One key sends to another, on whatever partition that is."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from onefold import Event, Output, Outputs, Topology
from onefold.error_codes import Code
from onefold.processor.core.errors import Refused
from onefold.testing import STEPS, TopologyDriver
from tests.support.coded import raises
from tests.support.crashes import crashed_at_every_hit

FIELDS = ["place", "hops", "way"]


class Place(Struct):
    """How often something came by, and all hops that were left to it then."""

    visits: int = 0
    left: int = 0


def handle(place: Place | None, event: Event) -> tuple[Place, Outputs]:
    """Counted here, and sent on to the next place while there are hops left. Way 1 goes by its key, way 2 goes astray."""
    value, held = event.value, place or Place()
    after = Place(held.visits + 1, held.left + value.hops)
    seen = ("relay.seen", {"place": value.place, "hops": value.hops, "way": value.way})
    if not value.hops:
        return after, (seen,)
    there = {"place": value.place + 1, "hops": value.hops - 1, "way": value.way}
    return after, (seen, Output("relay.hops", there, key=value.place + 1 if value.way == 1 else "somewhere"))


RELAY = Topology(
    name="relay",
    inputs=("relay.starts", "relay.hops"),
    key=lambda value: value.place,
    state=Place,
    handle=handle,
    outputs={"relay.seen": None, "relay.hops": None},
)


@pytest.fixture
def contracts(tmp_path: Path) -> Path:
    """One contract for the three topics."""
    topics = ["relay.starts", "relay.hops", "relay.seen"]
    fields = [{"name": name, "type": "long"} for name in FIELDS]
    schema = {"type": "record", "name": "Hop", "namespace": "relay", "topics": topics, "fields": fields}
    (tmp_path / "relay.Hop.avsc").write_text(json.dumps(schema), encoding="utf-8")
    return tmp_path


def feed(driver: TopologyDriver) -> None:
    """Three waves, each of which goes on for six hops; every second one of them in wrong partitions."""
    for wave in range(3):
        for place in range(4):
            driver.send("relay.starts", {"place": place, "hops": 6, "way": 1 + (place + wave) % 2})
        driver.run()
    driver.stop()


def outcome(driver: TopologyDriver) -> dict[str, Any]:
    seen = sorted(tuple(row.values()) for row in driver.read("relay.seen"))
    counts = [driver.task(partition).progress.counts for partition in range(driver.partitions)]
    return {"seen": seen, "states": driver.states(), "accepted": sum(count.accepted for count in counts)}


def test_what_a_pipeline_writes_to_itself_is_folded_once_wherever_it_is_at_home(contracts: Path) -> None:
    driver = TopologyDriver(RELAY, contracts=contracts, partitions=3)
    feed(driver)

    assert RELAY.fed == ("relay.hops",)
    wanted = [
        (place + hop, 6 - hop, 1 + (place + wave) % 2) for wave in range(3) for place in range(4) for hop in range(7)
    ]
    assert outcome(driver)["seen"] == sorted(wanted)
    assert outcome(driver)["accepted"] == len(wanted)
    assert {key: state.visits for key, state in driver.states().items()} == {
        str(place): sum(1 for there, _, _ in wanted if there == place) for place in range(10)
    }


@pytest.mark.long  # 20 s
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_neither_loses_nor_doubles_what_was_sent_on(contracts: Path, step: str) -> None:
    make = partial(TopologyDriver, RELAY, contracts=contracts, partitions=3)
    undisturbed = make()
    feed(undisturbed)
    expected = outcome(undisturbed)
    for where, driver in crashed_at_every_hit(step, make, feed):
        assert expected == outcome(driver), where


def test_a_pipeline_that_reads_nothing_but_itself_is_refused() -> None:
    with raises(Refused, Code.PIPELINE_WRONG):
        Topology("relay", ("relay.hops",), lambda value: value.place, Place, handle, {"relay.hops": None})
