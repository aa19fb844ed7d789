"""Times, places, filters and text of dead letters, without a server."""

import json
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from onefold.cli.commands.dead_letters import common, show
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.operate import merge_sql
from onefold.operate.dead_letters import letters, replay
from onefold.operate.dead_letters.letters import DeadLetters, Letter, Original, Wanted, place
from onefold.operate.dead_letters.replay import Report, in_order
from onefold.operate.record_reader import RecordPlace
from onefold.pipelines import Pipeline
from onefold.processor.core.changelog_format import RESETTING
from onefold.processor.core.errors import Refused, Rejected
from onefold.processor.core.values import Record
from onefold.processor.io import contracts, replays
from onefold.processor.io.avro_reader import WriterSchema
from onefold.processor.io.contracts import FOLDER as CONTRACTS
from onefold.processor.io.replays import Copied, Dropped, ParkedTurn, ReplayReceipt, WithoutWithdrawn
from onefold.processor.io.schemas import parse
from onefold.processor.io.serde import AvroCodec
from onefold.processor.loading import codec_of, topology_of
from onefold.processor.runtime.changelog import TaskProgress
from onefold.verify.parks import ParkTicket
from onefold.verify.record import ReadRecord as Judged
from onefold.verify.record import Source
from onefold.verify.replays import Receipts, ReceiptTurn, Replays, decode
from onefold.verify.verdict import CannotTell
from onefold.verify.writer_identity import PIPELINE_HEADER, REPLAYS_HEADER, WriterIdentity
from tests.support.coded import raises
from tests.support.single_object import single_object

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
LETTER = Letter(
    RecordPlace("runner.updates.dead", 0, 3),
    RecordPlace("runner.updates", 0, 7),
    1_000,
    "not JSON: oh",
    b"7",
    b"x",
    "",
    1,
)


@pytest.mark.parametrize("text", ["", "a/b", "a/b/c", "/0/1", "a/-1/2", "a/0/²", "a/b/0/1", "a/0/1/", "x" * 10_000])
def test_what_is_no_place_is_refused(text: str) -> None:
    with raises(UserError, Code.ARGUMENT_WRONG) as caught:
        place(text)
    assert len(caught.value.message) < 400
    assert RecordPlace.found(text) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"a/{2**31}/0", "Kafka numbers partitions up to 2147483647"),
        (f"a/0/{2**63}", "Kafka numbers offsets up to 9223372036854775807"),
        (f"a/{9 * 10**18}/0", "Kafka numbers partitions up to 2147483647"),
        (f"a/0/{'9' * 5_000}", "Kafka has no number of so many digits"),
    ],
)
def test_a_place_that_kafka_cannot_have_is_refused(text: str, why: str) -> None:
    """librdkafka's own error for it is an exception of its binding."""
    with pytest.raises(UserError, match=why):
        place(text)
    assert RecordPlace.found(text) is None, "nor does a header name it"
    assert place(f"a/{2**31 - 1}/{2**63 - 1}") == ("a", 2**31 - 1, 2**63 - 1)


def test_a_filter_takes_what_all_of_it_is_true_of() -> None:
    taken = [
        Wanted(),
        Wanted(reason="NOT json"),
        Wanted(since_ms=1_000, until_ms=1_001),
        Wanted(key="7"),
        Wanted(key="of the state"),
        Wanted(places=frozenset({LETTER.place})),
        Wanted(places=frozenset({RecordPlace("runner.updates", 0, 7)})),
    ]
    left = [
        Wanted(reason="Avro"),
        Wanted(since_ms=1_001),
        Wanted(until_ms=1_000),
        Wanted(key="8"),
        Wanted(reason="json", key="8"),
        Wanted(places=frozenset({RecordPlace("runner.updates", 0, 3)})),
    ]
    assert all(wanted.takes(LETTER, lambda letter: "of the state") for wanted in taken)
    assert not any(wanted.takes(LETTER, lambda letter: None) for wanted in left)


def test_what_strangers_wrote_is_text_and_no_command_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns, and words stay whole."""
    monkeypatch.setenv("COLUMNS", "80")
    word = "x" * 60
    letter = LETTER._replace(reason=f"\x1b[31mred\x07\nline {word} {word}", key=b"\x1b]0;title\x07")
    printed = common.entry(letter, "replayed")

    assert all(line.isprintable() for line in printed.splitlines())
    assert r"\x1b[31mred\x07\nline" in printed
    assert printed.count(word) == 2
    assert max(map(len, printed.splitlines())) <= 80


def test_a_receipt_is_read_as_it_was_written() -> None:
    receipt = ReplayReceipt(("runner.updates", 1, 7), "id", "runner.updates.dead/1/3", 5)
    key, value = receipt.encode()
    assert ReplayReceipt.decode(key, value) == receipt
    body = json.loads(value)
    dropped = receipt._replace(dropped=Dropped("ada@laptop", "a test event"))
    assert ReplayReceipt.decode(*dropped.encode()) == dropped
    assert str(dropped) == "dropped by ada@laptop: a test event"
    of_a_copy = receipt._replace(copied=Copied(("runner.updates", 0, 5), "cluster/runner/life"))
    assert ReplayReceipt.decode(*of_a_copy.encode()) == of_a_copy
    others = [{"topic_id": {}}, {"letter": 1}, {"at_ms": "now"}, {"version": None}]
    others += [{"copied": None}, {"copied": {}}, {"copied": {"original": "x", "signature": "y"}}]
    others += [{"copied": {"original": "runner.updates/0/5", "signature": 1}}]
    others += [{"dropped": None}, {"dropped": {}}, {"dropped": {"by": 1, "reason": "x"}}]
    changed = [(key, json.dumps(body | other).encode()) for other in others]
    for broken in ((b"x", value), (key, b"{}"), (key, b"[]"), (key, b"[" * 100_000), (None, None), *changed):
        with pytest.raises(ValueError, match=r"it has no place as its key|its fields are of other types"):
            ReplayReceipt.decode(*broken)
    with pytest.raises(ValueError, match="written by a newer Onefold"):
        ReplayReceipt.decode(key, json.dumps(body | {"version": 2}).encode())
    assert ReplayReceipt.decode(key, json.dumps(body | {"more": 1}).encode()) == receipt, (
        "what is only added is passed over"
    )
    more = {"dropped": {"by": "ada@laptop", "reason": "a test event", "more": 1}}
    assert ReplayReceipt.decode(key, json.dumps(body | more).encode()) == dropped


def test_the_verifier_reads_a_receipt_as_it_was_written() -> None:
    """Also one of a release that wrote fewer fields; of a parked key only in the life that parked it."""
    place, original = Source("runner.updates", 1, 7), Source("runner.updates", 0, 5)
    ticket = ParkTicket(3, True, "runner.updates/1/7", "1")
    owner, topic_ids = WriterIdentity("cluster", "runner", "life"), {"runner.updates": "id"}
    receipt = ReplayReceipt((*place,), "id", "runner.updates.dead/1/3", 5)

    def read(written: ReplayReceipt) -> Receipts:
        return decode([Judged("runner.replays", 0, 0, *written.encode())], owner, topic_ids)

    assert read(receipt) == {place: False}
    assert read(receipt._replace(dropped=Dropped("ada@laptop", "a test event"))) == {place: True}
    assert read(receipt._replace(topic_id="another")) == {}
    by_life: dict[str, tuple[Receipts, Receipts]] = {
        "life": ({place: False}, {place: ReceiptTurn(False, ticket)}),
        "before": ({place: False, original: place}, {place: False}),
    }
    for life, (copied, parked) in by_life.items():
        signature = f"cluster/runner/{life}"
        assert read(receipt._replace(copied=Copied((*original,), signature))) == copied
        assert read(receipt._replace(parked=ParkedTurn(signature, str(ticket)))) == parked
    with raises(CannotTell, Code.RECORD_UNREADABLE, "runner.replays/0/0"):
        decode([Judged("runner.replays", 0, 0, b"runner.updates/1/7", b"{}")], owner, topic_ids)


@pytest.mark.promise("dead-letters-dropped")
def test_what_comes_again_with_a_reset_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    letter = LETTER._replace(source=RecordPlace("bank.deposits", 0, 7))
    letters = DeadLetters.__new__(DeadLetters)
    letters.name, letters.topology = "bank", topology_of("bank")
    monkeypatch.setattr(letters, "select", lambda wanted: iter([letter]))
    replayed, dropped = Report(), Report()
    assert len(in_order(letters, Wanted(), replayed)) == 1
    assert in_order(letters, Wanted(), dropped, Dropped("ada@laptop", "a test event")) == []
    assert "a reset deletes bank.deposits" in dropped.failed[letter.place]


def test_what_is_too_large_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a drop that is the receipt; of a replay also the record with its headers."""

    def refuse(*given: object) -> Report:
        raise replay._TooLarge("MSG_SIZE_TOO_LARGE")

    monkeypatch.setattr(replay, "_together", refuse)
    letters: Any = SimpleNamespace(topology=topology_of("runner"))
    for dropped, topic in ((None, "runner.updates"), (Dropped("ada@laptop", "a test event"), "runner.replays")):
        report, receipts = Report(), replays.Receipts.__new__(replays.Receipts)
        decide = {LETTER: dropped}.__getitem__
        replay._in_parts(letters, [LETTER], receipts, report, decide, lambda name: None)
        assert report.failed[LETTER.place].startswith(f"{topic} does not take ")


@pytest.mark.promise("dead-letters-dropped")
def test_a_tick_is_dropped_and_never_replayed() -> None:
    tick = LETTER._replace(source=RecordPlace("meters.ticks", 0, 7))
    letters: Any = SimpleNamespace(
        select=lambda wanted: [tick], topology=SimpleNamespace(ticks="meters.ticks"), deleted_by_reset=()
    )
    replayed, dropped = Report(), Report()
    assert in_order(letters, Wanted(), replayed) == []
    assert "it is a tick" in replayed.failed[tick.place]
    (one,) = in_order(letters, Wanted(), dropped, Dropped("ada@laptop", "a test event"))
    assert (one.place, dropped.failed) == (tick.place, {})


SEND = {"id": 1, "email": "a", "subject": "s", "sent": 2, "date": "no date\0", "version": 0}
# A writer of its own, whose id is a text.
OTHER = {"type": "record", "name": "Send", "fields": [{"name": "id", "type": "string"}]}


class Registry:
    """Knows one schema."""

    def schema(self, schema_id: int) -> WriterSchema:
        return parse(schema_id, json.dumps(OTHER))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b'{"id": "one", "sent": NaN}', '{"id": "one", "sent": NaN}'),
        (b'{"id": "\\u001b[31m\\ud800"}', r'{"id": "\u001b[31m\ud800"}'),
        (
            single_object(json.loads((CONTRACTS / "campaigns.Send.avsc").read_text(encoding="utf-8")), SEND),
            '"subject": "s", "sent": 2',
        ),
        (b"\0\0\0\0\7\x06one", '{"id": "one"}'),
        (b"\0\0\0\0\7\x06on", ""),
        (b"\xc3\x01" + bytes(9), ""),
        (b"{", ""),
        (b"[" * 100_000, ""),
        (None, ""),
    ],
)
def test_what_breaks_a_rule_is_shown_as_it_was_written(value: bytes | None, says: str) -> None:
    """By whoever wrote it: JSON, Avro, and Confluent's format; and what nobody can read is bytes only."""
    letters = DeadLetters.__new__(DeadLetters)
    letters.topology = topology_of("campaigns")
    vars(letters)["codec"] = AvroCodec(letters.topology, contracts.load(CONTRACTS), Registry())
    letter = LETTER._replace(source=RecordPlace("campaigns.sends", 0, 7), value=value)
    original = Original(letter.key, value, None)

    data = show._data(letters, letter, original, None)
    assert data["refused_now"]
    assert data["decoded"] is None
    assert bool(data["says"]) == bool(says)
    printed = [line for line in show._lines(letters, letter, original, None, 512) if line.startswith("it says")]
    assert len(printed) == bool(says)
    assert all(says in line.replace("\n" + " " * 13, " ") and line.replace("\n", "").isprintable() for line in printed)


def test_what_is_admitted_is_not_said_twice() -> None:
    letters = DeadLetters.__new__(DeadLetters)
    letters.topology = topology_of("campaigns")
    vars(letters)["codec"] = codec_of(letters.topology)
    value = json.dumps({**SEND, "date": "2026-01-02"}).encode()
    letter = LETTER._replace(source=RecordPlace("campaigns.sends", 0, 7), value=value)
    data = show._data(letters, letter, Original(letter.key, value, None), None)
    assert (data["refused_now"], data["says"]) == ("", None)


def test_a_record_that_was_replayed_or_dropped_is_a_dead_letter_where_it_lay_first() -> None:
    codec = codec_of(topology_of("runner"))
    fields = ("user_id", "distance_meters", "timestamp_utc", "sequence_id", "run_id")
    record = Record("runner.updates", 0, 7, b"1", json.dumps(dict.fromkeys(fields, 1)).encode())
    replayed = ReplayReceipt(("runner.updates", 0, 7), "id", "runner.updates.dead/0/3", 5)
    dropped = ReplayReceipt(
        ("runner.updates", 0, 9), "id", "runner.updates.dead/0/4", 5, Dropped("ada@laptop", "a test event")
    )
    wrapped = WithoutWithdrawn(codec, {one.place: one for one in (replayed, dropped)})

    assert wrapped.decode(record._replace(offset=8)) == codec.decode(record)
    with raises(Rejected, Code.REPLAYED, "the replayed copy counts"):
        wrapped.decode(record)
    with raises(Rejected, Code.REPLAYED, "this record was dropped by ada@laptop: a test event"):
        wrapped.decode(record._replace(offset=9))


def test_nobody_goes_on_from_the_mark_of_a_reset() -> None:
    """Whoever does not know the word, as an older version, is refused by the number."""
    with raises(Refused, Code.RESET_INCOMPLETE):
        TaskProgress.decode(json.dumps(RESETTING).encode())
    with raises(Refused, Code.NEWER_VERSION):
        TaskProgress.decode(json.dumps({"version": RESETTING["version"]}).encode())


def test_the_tables_that_statements_write_to_are_found(tmp_path: Path) -> None:
    shop = Pipeline("shop", tmp_path, "", None, contracts=tmp_path, sql=tmp_path)
    (tmp_path / "merge").mkdir()
    (tmp_path / "merge" / "shop.bills.sql").write_text(
        """
    -- INSERT INTO shop.commented
    WITH gone AS (DELETE FROM shop.old RETURNING *)
    INSERT INTO shop.bills AS held (id) SELECT id FROM :stage AS s FOR UPDATE OF s
    ON CONFLICT (id) DO UPDATE SET x = 1;
    UPDATE ONLY totals SET n = 1; merge into "Shop"."Rows" USING x
    """,
        encoding="utf-8",
    )
    found = set(merge_sql.written(shop))
    assert found >= {"shop.old", "shop.bills", "totals", '"Shop"."Rows"'}
    assert found <= {"shop.old", "shop.bills", "totals", '"Shop"."Rows"', "SET", "OF"}, "and what is no table"


class TestJudge:
    """What the judge says of receipts and of records that were put back."""

    FIRST = Source("t", 0, 1)

    def kinds(self, *records: Judged, receipts: Receipts = MappingProxyType({FIRST: False})) -> list[str]:
        replays = Replays(receipts, WriterIdentity("", "p"))
        for record in records:
            replays.withdrawn(record, Source(*record[:3]))
        return [finding.kind for finding in replays.findings()]

    def record(self, offset: int, value: bytes = b"v", partition: int = 0, first: bytes | None = b"t/0/1") -> Judged:
        headers: list[tuple[str, bytes | None]] = (
            [(REPLAYS_HEADER, first), (PIPELINE_HEADER, b"/p/")] if first is not None else []
        )
        return Judged("t", partition, offset, b"k", value, headers)

    def test_once_and_as_it_was_is_right(self) -> None:
        assert self.kinds(self.record(1, first=None), self.record(2)) == []

    def test_what_is_wrong_is_named(self) -> None:
        original = self.record(1, first=None)
        assert self.kinds(original) == ["missing replay"]
        assert self.kinds(original, self.record(2), self.record(3)) == ["doubled replay"]
        assert self.kinds(original, self.record(2), receipts={}) == ["doubled replay"]
        assert self.kinds(original, self.record(2, b"w")) == ["changed replay"]
        assert self.kinds(original, self.record(2, partition=1)) == ["changed replay"]

    def test_what_was_dropped_is_not_there_again(self) -> None:
        original, dropped = self.record(1, first=None), {self.FIRST: True}
        assert self.kinds(original, receipts=dropped) == []
        assert self.kinds(original, self.record(2), receipts=dropped) == ["doubled replay"]

    def test_the_original_of_a_copy_of_an_earlier_life_stands_for_the_copy(self) -> None:
        """The copy itself is of that life, and is not read; what was replayed of it is."""
        original = self.record(7, first=None)
        for receipts, again in (({self.FIRST: True}, []), ({self.FIRST: False}, [self.record(2)])):
            both: dict[Source, bool | Source] = {**receipts, Source("t", 0, 7): receipts[self.FIRST] or self.FIRST}
            assert Replays(both).withdrawn(original, Source("t", 0, 7))
            assert self.kinds(original, *again, receipts=both) == []
            assert self.kinds(original, *again, self.record(3), receipts=both) == ["doubled replay"]
        assert self.kinds(original, receipts=both) == ["missing replay"]

    def test_it_has_the_time_and_the_headers_of_the_first(self) -> None:
        trace: list[tuple[str, bytes | None]] = [("traceparent", b"00-1-2-01")]
        original = self.record(1, first=None)._replace(headers=trace, timestamp_ms=7)
        again = self.record(2)._replace(timestamp_ms=9)
        sent: list[tuple[str, bytes | None]] = [("onefold-timestamp", b"7")]
        right = again._replace(headers=[*trace, *again.headers, *sent])
        assert self.kinds(original, right) == []
        assert self.kinds(original._replace(timestamp_ms=None), right) == [], "nothing is known of its time"
        for wrong in (
            [*again.headers, *sent],
            [*trace, *again.headers],
            [*trace, *again.headers, ("onefold-timestamp", b"8")],
        ):
            assert self.kinds(original, again._replace(headers=wrong)) == ["changed replay"]


def test_a_record_that_is_gone_may_have_been_removed_by_compaction() -> None:
    letter = Letter(
        RecordPlace("shop.orders.dead", 0, 1),
        RecordPlace.found("shop.orders/0/7"),
        0,
        "",
        b"k",
        b"v",
        "",
        1,
        None,
        None,
    )
    said = letters._original(letter, None, removed=False)
    assert said == "no record lies at shop.orders/0/7: compaction has removed it, or shop.orders was made again since"
