"""The judge's model of the runner domain, held to the seed and to hand-made tables."""

import json
from typing import Any

import pytest

from onefold.verify.decode import Inadmissible
from onefold.verify.record import Record, Source
from onefold.workloads import runner
from tests.support.expected import expect

MINUTE = 60_000
START = 1_509_558_788_000


class Applied:
    """A model that was given updates one after the other."""

    def __init__(self) -> None:
        self.model = runner.Model()
        self.applied = 0

    def update(self, sequence: int, metres: int, at: int, run: int = 1000, user: int = 1) -> bool:
        value = {
            "user_id": user,
            "distance_meters": metres,
            "timestamp_utc": at,
            "sequence_id": sequence,
            "run_id": run,
        }
        self.applied += 1
        return self.model.apply(value, Source(runner.TOPIC, 0, self.applied - 1))

    def row(self, table: Any, *key: int) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self.model.rows[table.name][key][0]
        return row


def test_the_seed_a_duplicated_message_is_not_processed_twice() -> None:
    applied = Applied()
    applied.update(4, 150, START)
    assert applied.update(5, 120, START + 10 * MINUTE)
    assert not applied.update(5, 120, -1)
    assert applied.row(runner.STATS, 1000, 1) == (1000, 1, 5, 270, 10 * MINUTE)
    assert applied.row(runner.MESSAGES, 1, 5) == (1, 5, START + 10 * MINUTE, 1000, 120)
    assert applied.row(runner.TENDENCY, 1) == (1, 5, START + 10 * MINUTE, "good job", "good job")


def test_the_seed_the_previous_tendency_is_that_of_the_update_before() -> None:
    applied = Applied()
    for sequence, (metres, seconds) in enumerate([(10, 0), (40, 10), (50, 20), (50, 30)]):
        applied.update(sequence, metres, START + seconds * 1000)
    assert applied.row(runner.TENDENCY, 1)[3:] == ("good job", "well done")


def test_the_first_previous_tendency_is_fine() -> None:
    applied = Applied()
    applied.update(0, 1, START)
    assert applied.row(runner.TENDENCY, 1)[3:] == ("good job", "fine")


@pytest.mark.parametrize(
    ("metres", "tendency"),
    [(105, "good job"), (106, "well done"), (95, "good job"), (94, "keep going"), (100, "good job"), (0, "keep going")],
)
def test_five_percent_decide(metres: int, tendency: str) -> None:
    applied = Applied()
    for sequence, (walked, at) in enumerate([(0, 0), (100, 30_000), (metres, 60_000)]):
        applied.update(sequence, walked, START + at)
    assert applied.row(runner.TENDENCY, 1)[3] == tendency


def test_a_clock_that_steps_back_never_shortens_a_run() -> None:
    applied = Applied()
    for sequence, at in enumerate([0, 60_000, -60_000, 30_000]):
        applied.update(sequence, 10, START + at)
    assert applied.row(runner.STATS, 1000, 1)[3:] == (40, 60_000)


def test_a_new_run_starts_from_nothing_and_interleaved_runs_stay_apart() -> None:
    applied = Applied()
    for sequence in range(6):
        applied.update(sequence, 10 + sequence % 2, START + sequence * 1000, run=1 + sequence % 2)
    assert applied.row(runner.STATS, 1, 1)[3:] == (30, 4000)
    assert applied.row(runner.STATS, 2, 1)[3:] == (33, 4000)


@pytest.mark.parametrize(("others", "metres"), [(7, 20), (8, 10)])
def test_eight_runs_are_remembered(others: int, metres: int) -> None:
    applied = Applied()
    for sequence, run in enumerate([1, *range(2, 2 + others), 1]):
        applied.update(sequence, 10, START + sequence, run=run)
    assert applied.row(runner.STATS, 1, 1)[3] == metres


@pytest.mark.parametrize(
    ("field", "value"),
    [("distance_meters", -1), ("distance_meters", 10_000_001), ("sequence_id", -1), ("timestamp_utc", 2**53 + 1)],
)
def test_out_of_range(field: str, value: int) -> None:
    update = {"user_id": 1, "distance_meters": 0, "timestamp_utc": 0, "sequence_id": 0, "run_id": 0}
    with pytest.raises(Inadmissible):
        runner.Model().apply({**update, field: value}, Source(runner.TOPIC, 0, 0))


def test_every_record_has_one_fate() -> None:
    body = {"user_id": 2, "distance_meters": 5, "timestamp_utc": 0, "sequence_id": 1, "run_id": 1}
    good = json.dumps(body).encode()
    # Of two partitions, that of user 2 is 0.
    records = [
        Record(runner.TOPIC, 0, 0, b"2", good),
        Record(runner.TOPIC, 0, 3, b"2", good),
        Record(runner.TOPIC, 0, 4, b"2", b"{"),
        Record(runner.TOPIC, 1, 0, None, json.dumps({**body, "sequence_id": 2}).encode()),
    ]
    expected = expect(runner.WORKLOAD, records, 2)
    assert expected.counts.records == 4
    assert expected.fates[runner.TOPIC, 0] == bytes([1, 0, 0, 2, 4])
    assert expected.fates[runner.TOPIC, 1] == bytes([3])
    assert list(expected.dead) == [Source(runner.TOPIC, 0, 4)]
    copy = Record(runner.TOPIC, 0, 5, b"2", records[3].value, [("onefold-source", b"runner.updates/1/0")])
    for order in ([*records, copy], [*records[:3], copy, records[3]]):
        expected = expect(runner.WORKLOAD, order, 2)
        assert not expected.uncopied
        assert not expected.unsent
        assert expected.model.rows["runner.stats"][1, 2] == ((1, 2, 2, 10, 0), Source(runner.TOPIC, 0, 5))
    garbled = copy._replace(value=good)
    for order in ([*records, garbled], [*records[:3], garbled, records[3]]):
        expected = expect(runner.WORKLOAD, order, 2)
        assert list(expected.uncopied) == [Source(runner.TOPIC, 1, 0)], "a copy with another value is none"
