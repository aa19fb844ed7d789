"""What a decision log says to the sink. No Spark, no Kafka, no Postgres."""

import json
import random
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.decision import Kind, Proposal, Range
from onefold.processor.core.decision_log import Body, Note
from onefold.processor.core.values import Counts
from onefold.processor.io.proposals import AvroProposals
from onefold.spark_sink.decisions import (
    Decided,
    Decisions,
    Seen,
    decide,
    offset_of,
    place,
    refuse_closed,
    seen,
    summary,
    write_at,
)
from onefold.spark_sink.errors import Refused
from onefold.spark_sink.landing.ledger import Batch, LastRecord, OffsetRange
from tests.support.coded import raises
from tests.support.simulated_topics import LOG, MemoryLog

PROPOSALS = AvroProposals()
OPEN = Proposal(0, 1, {"in": Range("id", 0, 0)}, "a", kind=Kind.OPEN)
OPENED: Decided = {"version": 1, "closed": False, "inputs": {"in": {"topic_id": "id", "next_offset": 0}}}


def step(version: int, start: int, end: int, kind: Kind = Kind.STEP) -> Proposal:
    return Proposal(0, version, {"in": Range("id", start, end)}, "a", kind=kind)


def decided(*proposals: Proposal | None, start: int = 0, before: Decided = None) -> Decisions:
    """A partition that holds these."""
    records = [Seen(start + n, 100 + n, 10, proposal) for n, proposal in enumerate(proposals)]
    return decide(LOG, 0, "log", before, range(start, start + len(records)), records)


def test_the_first_of_each_version_comes_true() -> None:
    found = decided(step(1, 0, 2), OPEN, OPEN, step(1, 0, 2), step(1, 0, 3), None, step(2, 3, 4), step(2, 2, 4))
    assert found.offsets == (1, 3, 7)
    assert found.written == 30
    assert found.fingerprints[7] == 107
    assert found.after == {"version": 3, "closed": False, "inputs": {"in": {"topic_id": "id", "next_offset": 4}}}
    assert found.decided_at(3) == OPENED
    assert [found.decided_at(offset) for offset in (0, 1)] == [None, None]


def test_the_records_may_come_in_any_order() -> None:
    """Spark promises none."""
    records = [Seen(0, 0, 1, OPEN), Seen(1, 0, 1, step(1, 0, 2)), Seen(2, 0, 1, step(1, 0, 3))]
    assert decide(LOG, 0, "log", None, range(3), reversed(records)).offsets == (0, 1)


def test_what_was_written_for_another_log_comes_to_nothing() -> None:
    late = step(1, 0, 2)._replace(log_id="deleted since")
    assert decided(OPEN, late, step(1, 0, 3)._replace(log_id="log")).offsets == (0, 2)


@pytest.mark.parametrize("seed", range(20))
def test_however_the_log_is_cut_into_batches_one_history_comes_of_it(seed: int) -> None:
    """From what is stored at the cut, also when that lies within a batch of another sink."""
    log = MemoryLog(random.Random(seed))
    key = (LOG, 0)
    records = [log.seen(key, offset) for offset in range(log.reach[key].end)]
    whole = decide(*key, "log", None, range(len(records)), records)
    assert [n for offset in whole.offsets for n in log.records[key][offset][1]] == log.true[key]
    for cut in range(len(records)):
        first = decide(*key, "log", None, range(cut), records[:cut])
        second = decide(*key, "log", first.after, range(cut, len(records)), records[cut:])
        assert first.offsets + second.offsets == whole.offsets
        assert (first.after, second.after) == (whole.decided_at(cut), whole.after)


def test_what_another_version_cannot_read_is_refused() -> None:
    about = summary(b"\x02whatever")
    with raises(Refused, Code.NEWER_VERSION):
        seen(0, 0, *about)


@pytest.mark.parametrize("value", [None, b"", b"\0", b"\x01", b"\x01garbage", PROPOSALS.encode_note(Note(0, "a", {}))])
def test_what_is_no_proposal_decides_nothing(value: bytes | None) -> None:
    assert seen(3, 7, *summary(value)) == Seen(3, 7, 0, None)


def test_a_summary_has_all_that_the_rule_looks_at() -> None:
    body = Body(Counts(), [(b"k", b"v")], b"written")
    given = Proposal(3, 1 << 40, {"in": Range("id", 5, 6), "other": Range("x", 1, 1)}, "a", body, log_id="log")
    assert seen(3, 7, *summary(PROPOSALS.encode(given))) == Seen(3, 7, len(b"written"), given._replace(body=None))


def test_a_record_that_is_missing_is_refused() -> None:
    with raises(Refused, Code.DECISIONS_LOST):
        decide(LOG, 0, "log", None, range(3), [Seen(0, 0, 0, OPEN), Seen(2, 0, 0, None)])
    with raises(Refused, Code.DECISIONS_LOST):
        decide(LOG, 0, "log", None, range(2), [Seen(0, 0, 0, OPEN)])


def test_what_was_decided_elsewhere_is_refused() -> None:
    """An opening with a version that leaves some out: those were transactions of Kafka, and they wrote somewhere else."""
    with raises(Refused, Code.TABLES_OF_OTHER_TOPICS) as refusal:
        decided(OPEN._replace(version=2))
    assert refusal.value.exit_code == 3
    closed = decided(OPEN, step(1, 0, 0, Kind.CLOSE)).after
    again = OPEN._replace(version=3)
    assert decided(again, start=2, before=closed).after == {**(OPENED or {}), "version": 3}
    with raises(Refused, Code.TABLES_OF_OTHER_TOPICS):
        decided(again._replace(version=4), start=2, before=closed)


def test_a_task_that_left_the_log_is_refused_by_name() -> None:
    closed = decided(OPEN, step(1, 0, 0, Kind.CLOSE)).after
    refuse_closed(LOG, {0: None, 1: OPENED})
    with raises(Refused, Code.TABLES_OF_OTHER_TOPICS, "task 1"):
        refuse_closed(LOG, {0: OPENED, 1: closed})


def test_a_log_that_tasks_share_fills_no_tables() -> None:
    """What the other task decides would be passed over, and nobody would know."""
    with raises(Refused, Code.TABLES_OF_OTHER_TOPICS, "task 2"):
        decided(OPEN, step(1, 0, 2), OPEN._replace(task=2))


def test_a_place_is_greater_the_later_the_write() -> None:
    """Also the last write of one decision and the first of the next."""
    places = [place(4, (1 << 21) - 1), place(5), place(5, 1), place(1 << 41, 3)]
    assert places == sorted(places)
    assert [offset_of(at) for at in places] == [4, 5, 5, 1 << 41]
    assert place((1 << 42) - 1, (1 << 21) - 1) < 1 << 63


def test_a_write_is_found_by_its_number() -> None:
    writes: list[Any] = [
        ("a", None, b"0", b"zero", None),
        ("b", 1, None, None, [("h", b"x")]),
        ("a", None, b"2", b"", None),
    ]
    body = Body(Counts(), [], PROPOSALS.encode_writes(writes))
    value = PROPOSALS.encode(step(1, 0, 2)._replace(body=body))
    none = frozenset[str]()
    found = [write_at(value, number) for number in range(3)]
    assert found == [(b"0", b"zero", none), (None, None, {"h"}), (b"2", b"", none)]


def test_what_the_ledger_holds_is_json() -> None:
    """And the same when it comes back."""
    after = decided(OPEN, step(1, 0, 2)).after
    assert json.loads(json.dumps(after)) == after


def test_the_beginning_of_what_is_decided_is_what_was_decided_until_then() -> None:
    """Wherever a batch is cut that PostgreSQL refuses: both parts continue each other in the ledger."""
    log = [step(1, 0, 0, Kind.OPEN), step(1, 0, 2), None, step(2, 2, 3), step(2, 2, 4)]
    whole = decided(*log)
    ranges = (OffsetRange("log", 0, 0, len(log), "id", LastRecord(4, 4), whole),)
    for end in range(len(log) + 1):
        beginning, left = decided(*log[:end]), whole.until(end)
        assert (left.offsets, left.fingerprints, left.positions, left.after) == (
            beginning.offsets, beginning.fingerprints, beginning.positions, beginning.after,
        )  # fmt: skip
    first, second = Batch("s", "w", ranges).halves()
    assert [(part.start, part.end) for part in (*first.ranges, *second.ranges)] == [(0, 2), (2, 5)]
    assert first.ranges[0].decisions is not None
    assert second.ranges[0].decisions is not None
    assert first.ranges[0].decisions.after == second.ranges[0].decisions.decided_at(2)
    assert second.ranges[0].decisions.after == whole.after
