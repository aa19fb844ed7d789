"""What becomes of rows and positions at the edges of the landing transaction, on a real Postgres and without Spark."""

from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from onefold.error_codes import Code
from onefold.spark_sink.contracts import Target
from onefold.spark_sink.errors import Overlap, Rewind
from onefold.spark_sink.landing import land as landing
from onefold.spark_sink.landing import ledger, topic_identity
from onefold.spark_sink.landing.ledger import BatchRange, LastRecord, LedgerPosition
from onefold.spark_sink.landing.protocols import KafkaRecord, Reach
from onefold.spark_sink.landing.staging_tables import Staged
from onefold.spark_sink.query_config import QueryConfig
from tests.support.coded import raises
from tests.support.landing import ID, Landed, Sink, once

Reader = psycopg.Connection[Any]


def nothing(name: str) -> None:
    """No fault point does anything."""


class Kafka:
    """One topic of two partitions that begin at 100."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def ids(self, topics: list[str]) -> dict[str, str]:
        return dict.fromkeys(topics, ID)

    def reach(self, topics: list[str]) -> dict[tuple[str, int], Reach]:
        return {(self._topic, partition): Reach(100, 200) for partition in (0, 1)}

    def record_from(self, topic: str, partition: int, offset: int) -> KafkaRecord | None:
        return (
            KafkaRecord(offset, None, f"value {offset}".encode(), 0)
            if offset < 103
            else KafkaRecord(offset + 1, None, b"the next one", 0)
        )

    def fingerprint_at(self, topic: str, partition: int, last: LastRecord) -> int | None:
        return last.fingerprint

    def is_compacted(self, topic: str) -> bool:
        return False


def test_a_partition_that_is_opened_twice_keeps_what_was_landed_between(
    sink: Sink, other_sink: Sink, plan: QueryConfig, landed: Landed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other sink read when there was no position; until it opens the partition, there is one, and it has moved on."""
    original, key = ledger.positions, (sink.topic, 1)
    seen: list[dict[Any, LedgerPosition]] = []

    def positions(connection: Any, name: str) -> dict[Any, LedgerPosition]:
        seen.append(original(connection, name))
        if len(seen) == 1:
            ledger.open_partition(sink.connection, name, key, 100, ID, "one")
            batch = sink.batch(100, 104, partition=1)
            rows = Staged(sink.stage, sink.table(*range(100, 104), partition=1))
            assert landing.land(sink.connection, batch, rows, plan.domain.targets, nothing)
        return seen[-1]

    monkeypatch.setattr(ledger, "positions", positions)
    start, ids = topic_identity.recognise(
        other_sink.connection, plan.domain.name, "two", Kafka(sink.topic), [sink.topic]
    )  # fmt: skip
    assert key not in seen[0]
    assert start == {(sink.topic, 0): 100, key: 104}
    assert ids == {sink.topic: ID}
    assert original(other_sink.connection, plan.domain.name)[key] == LedgerPosition(104, ID, LastRecord(103, 104))
    assert landed()[1] == once(100, 104)[1]


def test_positions_of_another_sink_are_its_own(sink: Sink, plan: QueryConfig) -> None:
    ledger.open_partition(sink.connection, "another", (sink.topic, 0), 7, ID, "one")
    sink.land(100, 104)
    assert ledger.positions(sink.connection, "another") == {(sink.topic, 0): LedgerPosition(7, ID, None)}
    assert ledger.positions(sink.connection, plan.domain.name)[sink.topic, 0].next_offset == 104


def test_a_batch_of_two_partitions_of_which_one_is_landed_moves_the_other(
    sink: Sink, plan: QueryConfig, reader: Reader
) -> None:
    """And the position that is ahead stays, with its last record."""
    ledger.open_partition(sink.connection, plan.domain.name, (sink.topic, 1), 50, ID, "one")
    sink.land(100, 110)
    left, right = sink.batch(100, 104).ranges + sink.batch(50, 53, partition=1).ranges
    rows = pa.concat_tables([sink.table(100, 103), sink.table(50, 52, partition=1)])
    both = BatchRange(plan.domain.name, "one", (left, right))
    assert landing.land(sink.connection, both, Staged(sink.stage, rows), plan.domain.targets, nothing)
    stored = ledger.positions(sink.connection, plan.domain.name)
    assert stored == {
        (sink.topic, 0): LedgerPosition(110, ID, LastRecord(109, 110)),
        (sink.topic, 1): LedgerPosition(53, ID, LastRecord(52, 53)),
    }
    counted = reader.execute(f"SELECT count(*), max(landings) FROM {plan.domain.name}.notes").fetchone()
    assert counted == (12, 1)


def test_a_hole_in_one_partition_moves_no_other(sink: Sink, plan: QueryConfig, landed: Landed) -> None:
    ledger.open_partition(sink.connection, plan.domain.name, (sink.topic, 1), 50, ID, "one")
    ranges = sink.batch(100, 104).ranges + sink.batch(51, 53, partition=1).ranges
    with raises(Rewind, Code.POSITIONS_MOVED, "51", "50"):
        landing.land(
            sink.connection, BatchRange(plan.domain.name, "one", ranges), sink.rows(100), plan.domain.targets, nothing
        )
    stored = ledger.positions(sink.connection, plan.domain.name)
    assert [position.next_offset for position in stored.values()] == [100, 50]
    assert landed()[1] == []


def test_a_last_record_that_was_landed_before_is_not_said_to_be_new(sink: Sink, plan: QueryConfig) -> None:
    """The batch reaches further than what is stored, but its last record does not: markers follow it."""
    sink.land(100, 104)
    batch = sink.batch(102, 109)
    overlapping = replace(batch, ranges=(replace(batch.ranges[0], last_record=LastRecord(102, 9)),))
    assert landing.land(sink.connection, overlapping, sink.rows(102), plan.domain.targets, nothing)
    assert ledger.positions(sink.connection, plan.domain.name)[sink.topic, 0] == LedgerPosition(
        109, ID, LastRecord(103, 104)
    )


@pytest.mark.parametrize(("since", "topic_id"), [(99, ID), (101, ID), (100, "topic-id-2")])
def test_the_swap_compares_for_itself(sink: Sink, landed: Landed, since: int, topic_id: str) -> None:
    """What was looked at before it, under lock, is the same. The swap does not rest on that."""
    batch = sink.batch(since, 110, topic_id=topic_id)
    with raises(Rewind, Code.POSITIONS_MOVED, "0 of 1"):
        ledger._swap(sink.connection, batch, list(batch.ranges), {(sink.topic, 0): since})
    assert landed() == (100, [])


@pytest.fixture
def reduced(sink: Sink, plan: QueryConfig) -> dict[str, Target]:
    """The targets, as if a reduction gave the notes."""
    return {**plan.domain.targets, sink.topic: replace(plan.domain.targets[sink.topic], reduced=True)}


def test_of_a_reduced_batch_that_overlaps_nothing_is_landed(
    sink: Sink, reduced: dict[str, Target], landed: Landed
) -> None:
    sink.land(100, 104)
    with pytest.raises(Overlap) as caught:
        landing.land(sink.connection, sink.batch(102, 108), sink.rows(*range(102, 108)), reduced, nothing)
    assert caught.value.start_offsets == {(sink.topic, 0): 104}
    assert landed() == once(100, 104)
    assert landing.land(sink.connection, sink.batch(104, 108), sink.rows(*range(104, 108)), reduced, nothing)
    assert landed() == once(100, 108)
    assert not landing.land(sink.connection, sink.batch(102, 108), sink.rows(102), reduced, nothing)


def test_rows_that_stand_for_a_batch_are_landed_whatever_their_offsets(
    sink: Sink, reduced: dict[str, Target], landed: Landed
) -> None:
    """They belong to no record: none of them may be held against a start offset."""
    assert landing.land(sink.connection, sink.batch(100, 104), sink.rows(7, 8), reduced, nothing)
    assert landed() == (104, [(7, 1), (8, 1)])
