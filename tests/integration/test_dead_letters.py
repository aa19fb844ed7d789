"""Dead letters on a real broker: found, shown, and put back exactly once, whatever is killed and whoever else does it."""

import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from onefold.cli.main import run
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, REFUSED, UNAVAILABLE, USAGE
from onefold.operate import reading
from onefold.operate.dead_letters import replay
from onefold.operate.dead_letters.letters import DeadLetters, Letter, Original, Wanted
from onefold.operate.pausing import whoami
from onefold.operate.reading import Place
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import REPLAYS_HEADER
from onefold.processor.io.admin import connect, create_topics, identity
from onefold.processor.io.partitioner import partition_of
from onefold.processor.io.reading import between
from onefold.processor.io.replays import Dropped
from onefold.verify.record import Record
from tests.support.coded import code_of, raises
from tests.support.dying import dies
from tests.support.infrastructure import delete_topics
from tests.support.processes import drained, instance, judge, produce, records
from tests.support.rooms import ROOT
from tests.support.versions import POISON_METERS

DROPPED = Dropped("ada@laptop", "a test event")
MakeDomain = Callable[..., Topology]
LARGE = b'{"user_id": "' + b"x" * 100_000 + b'"}'
BROKEN = {b"7": b"no update at all", b"8": LARGE, b"9": b'{"user_id": 9}', None: None}


def update(user: int, sequence: int, meters: int = 100) -> bytes:
    fields = {"user_id": user, "distance_meters": meters, "timestamp_utc": sequence, "sequence_id": sequence}
    return json.dumps({**fields, "run_id": 1}).encode()


class Site:
    """The runner with some dead letters, and the commands for it."""

    def __init__(self, topology: Topology, client: dict[str, str], home: Path) -> None:
        self.topology, self.client, self.home = topology, client, home
        self.options: dict[str, Any] = {"bootstrap_servers": client["bootstrap.servers"], "home": str(home)}

    @property
    def letters(self) -> DeadLetters:
        return DeadLetters("runner", Settings(**self.options))

    def fold(self, **options: Any) -> None:
        with instance(self.topology, self.client, self.home / "log", **options):
            drained(self.topology, self.client)

    def put_back(self) -> list[Record]:
        return [one for one in records(self.client, "runner.updates") if one.header(REPLAYS_HEADER)]

    def dead(self) -> list[Record]:
        return records(self.client, "runner.updates.dead")


@pytest.fixture
def site(fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Four broken records among good ones, folded."""
    topology = fresh_domain("runner")
    for name, value in {"BOOTSTRAP_SERVERS": client["bootstrap.servers"], "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(f"ONEFOLD_{name}", value)
    monkeypatch.setenv("COLUMNS", "80")
    producer = Producer({**client, "partitioner": "murmur2_random", "message.max.bytes": 4_000_000})
    for broken in BROKEN.items():
        producer.produce("runner.updates", broken[1], broken[0], headers=[("trace", b"00-abc"), ("onefold-own", b"no")])
    assert producer.flush(20) == 0
    produce(client, "runner.updates", [(b"1", update(1, number)) for number in range(1, 20)])
    made = Site(topology, client, tmp_path)
    made.fold()
    return made


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """What a command prints as JSON."""
    assert run([*words, "--json"]) == code, capsys.readouterr()
    return json.loads(capsys.readouterr().out)


def test_the_commands_find_and_show_them(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All on the same dead letters."""
    they_are_listed_by_reason_key_topic_and_time(capsys)
    the_list_is_readable_at_80_columns(capsys)
    the_whole_original_and_its_headers_are_shown(site, capsys)
    with monkeypatch.context() as of_a_batch:
        a_dry_run_holds_no_more_than_a_batch(site, capsys, of_a_batch)
    the_commands_of_the_page_do_what_it_says(site, capsys)
    errors_are_one_sentence(capsys, monkeypatch)


def they_are_listed_by_reason_key_topic_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    listed = said(capsys, "dead-letters", "list", "runner")
    assert {one["key"] for one in listed} == {"7", "8", "9", None}
    assert {one["bytes"] for one in listed} == {len(value or b"") for value in BROKEN.values()}
    assert all(one["source"].startswith("runner.updates/") and not one["replayed"] for one in listed)

    def keys(*options: str) -> list[str | None]:
        return [one["key"] for one in said(capsys, "dead-letters", "list", "runner", *options)]

    assert keys("--reason", "IS NULL") == [None]
    assert keys("--key", "8") == ["8"]
    assert len(keys("--topic", "runner.updates", "--since", "1h")) == 4
    assert keys("--until", "1h") == keys("--since", "2999-01-01") == []


def the_list_is_readable_at_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dead-letters", "list", "runner", "--limit", "3"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "4 dead letters of runner, 0 replayed, 0 dropped, the newest 3 are shown" in printed


def the_whole_original_and_its_headers_are_shown(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a record that the dead letter holds only a part of, too; by its own place and by that of its source."""
    (letter,) = site.letters.select(Wanted(key="8"))
    for place in (letter.place, letter.source):
        shown = said(capsys, "dead-letters", "show", str(place))
        assert bytes.fromhex(shown["value_hex"]) == LARGE
        assert ["trace", b"00-abc".hex()] in shown["headers"]
        assert (shown["spelling"], shown["lacks"]) == ("JSON, dict", "")
        assert shown["refused_now"] == shown["reason"] == letter.reason

    assert run(["dead-letters", "show", str(letter.place)]) == 0
    printed = capsys.readouterr().out
    assert '00000000  7b 22 75 73 65 72 5f 69 64 22 3a 20 22 78 78 78  {"user_id": "xxx' in printed
    assert "header       trace = 00-abc" in printed
    assert max(map(len, printed.splitlines())) <= 80


def the_commands_of_the_page_do_what_it_says(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of docs/dead-letters.md, with a place that there is."""
    page = (ROOT / "docs" / "dead-letters.md").read_text(encoding="utf-8")
    block = page.partition("```\n")[2].partition("```")[0]
    (letter,) = site.letters.select(Wanted(key="7"))
    commands = [shlex.split(line.replace("runner.updates.dead/0/12", str(letter.place))) for line in block.splitlines()]
    assert [words[:3] for words in commands] == [
        ["onefold", "dead-letters", verb] for verb in ("list", "show", "replay", "replay", "drop")
    ]
    for words in commands:
        assert run(words[1:]) == 0
    printed = capsys.readouterr().out
    assert "4 dead letters" not in printed, "one is null, which is no JSON either"
    assert "3 dead letters of runner" in printed
    assert "0 would be replayed" in printed
    assert "1 dropped, 0 had been replayed or dropped before, 0 cannot be." in printed


def a_dry_run_holds_no_more_than_a_batch(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of however many there are, and says of all of them what would become of each."""
    held: list[int] = []
    originals = DeadLetters.originals

    def counted(self: DeadLetters, letters: Iterable[Letter]) -> dict[Place, Original | str]:
        found = originals(self, letters)
        held.append(len(found))
        return found

    monkeypatch.setattr(DeadLetters, "originals", counted)
    monkeypatch.setattr(replay, "RECORDS_MAX", 1)
    told = said(capsys, "dead-letters", "replay", "runner", "--all", "--dry-run", code=FAILED)

    assert set(told["would"]) == {str(letter.place) for letter in site.letters.select(Wanted())}
    assert (told["replayed_before"], told["failed"], held) == (0, {}, [1] * len(BROKEN))


def errors_are_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    nothing, last = str(Place("runner.updates.dead", 0, 999)), str(Place("runner.updates.dead", 0, 2**63 - 1))
    mistakes = {
        ("list", "nobody"): Code.PIPELINE_UNKNOWN,
        ("list", "runner", "--since", "soon"): Code.ARGUMENT_WRONG,
        ("list", "runner", "--topic", "x"): Code.PIPELINE_UNKNOWN,
        ("show", "runner.updates"): Code.ARGUMENT_WRONG,
        ("show", "x/0/1"): Code.PIPELINE_UNKNOWN,
        ("show", nothing): Code.DEAD_LETTER_MISSING,
        ("show", last): Code.DEAD_LETTER_MISSING,
        ("show", f"runner.updates.dead/{2**31}/0"): Code.ARGUMENT_WRONG,
        ("replay", "runner"): Code.ARGUMENT_WRONG,
    }
    for words, code in mistakes.items():
        assert run(["dead-letters", *words]) == USAGE
        assert code_of(capsys.readouterr().err) is code
    monkeypatch.setattr(reading, "_CALL_S", 0.5)
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert run(["dead-letters", "list", "runner"]) == UNAVAILABLE
    assert code_of(capsys.readouterr().err, "127.0.0.1:1") is Code.KAFKA_SILENT


@pytest.mark.promise("dead-letters-once")
@pytest.mark.long  # 16 s
def test_a_replay_that_is_killed_at_every_step_puts_each_back_once(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Key, value and headers as they were, in the same partition; a second replay does nothing, and verify stays valid."""
    before = {
        f"{one.topic}/{one.partition}/{one.offset}".encode(): one for one in records(site.client, "runner.updates")
    }
    for step in replay.STEPS:
        dies("replay", "runner", site.options, step)
    report = replay.replay(site.letters, Wanted())
    assert len(report.done) == 3, "one was committed before its replay was killed"
    assert len(report.before) == 1

    assert said(capsys, "dead-letters", "replay", "runner", "--all")["replayed"] == []
    back = site.put_back()
    assert Counter(one.header(REPLAYS_HEADER) for one in back).most_common(1)[0][1] == 1
    assert len(back) == len(BROKEN)
    for one in back:
        first = before[one.header(REPLAYS_HEADER) or b""]
        assert (one.partition, one.key, one.value) == (first.partition, first.key, first.value)
        assert one.header("trace") == b"00-abc"
        assert one.header("onefold-own") is None
        assert one.header("onefold-timestamp")
    site.fold()

    assert judge(site.topology, site.client).counts.dead == 2 * len(BROKEN), "refused again: dead letters of their own"
    listed = said(capsys, "dead-letters", "list", "runner")
    assert sorted(one["replayed"] for one in listed) == [False] * 4 + [True] * 4
    assert len(said(capsys, "dead-letters", "list", "runner", "--open")) == 4


@pytest.mark.promise("dead-letters-dropped")
@pytest.mark.long  # 16 s
def test_a_drop_that_is_killed_at_every_step_drops_each_once(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """A receipt for each, nothing in the input, and no replay of them afterwards."""
    before = [(one.topic, one.partition, one.offset) for one in records(site.client, "runner.updates")]
    for step in replay.STEPS:
        dies("drop", "runner", site.options, step)
    report = replay.drop(site.letters, Wanted(), DROPPED)
    assert len(report.done) == 3, "one was committed before its drop was killed"
    assert len(report.before) == 1

    assert said(capsys, "dead-letters", "drop", "runner", "--all", "--because", "again")["dropped"] == []
    told = said(capsys, "dead-letters", "replay", "runner", "--all")
    assert (told["replayed"], told["replayed_before"]) == ([], len(BROKEN))
    receipts = records(site.client, "runner.replays")
    assert Counter(one.key for one in receipts).most_common(1)[0][1] == 1
    assert len(receipts) == len(BROKEN)
    assert [(one.topic, one.partition, one.offset) for one in records(site.client, "runner.updates")] == before

    assert judge(site.topology, site.client).counts.dead == len(BROKEN)
    listed = said(capsys, "dead-letters", "list", "runner")
    assert [one["dropped"] for one in listed] == [DROPPED._asdict()] * len(BROKEN)
    assert not any(one["replayed"] for one in listed)
    assert said(capsys, "dead-letters", "list", "runner", "--open") == []


@pytest.mark.promise("dead-letters-dropped")
@pytest.mark.long  # 10 s
def test_a_dead_letter_is_dropped_or_replayed_and_never_both(site: Site) -> None:
    """The second command begins while the first is at a step, and ends before it goes on: one of them has all letters."""
    others: list[replay.Report] = []

    def dropping(name: str) -> None:
        if name == "before_commit" and not others:
            others.append(replay.drop(site.letters, Wanted(key="7"), DROPPED))

    with raises(UserError, Code.COMMAND_RUNNING, "runner"):
        replay.replay(site.letters, Wanted(key="7"), dropping)
    assert (len(others[0].done), site.put_back()) == (1, [])

    def replaying(name: str) -> None:
        if name == "before_commit" and len(others) == 1:
            others.append(replay.replay(site.letters, Wanted()))

    with raises(UserError, Code.COMMAND_RUNNING, "runner"):
        replay.drop(site.letters, Wanted(), DROPPED, replaying)
    assert (len(others[1].done), len(others[1].before)) == (3, 1)
    assert replay.drop(site.letters, Wanted(), DROPPED).done == []
    site.fold()
    assert judge(site.topology, site.client).counts.dead == len(BROKEN) + 3


@pytest.mark.promise("dead-letters-once")
@pytest.mark.long  # 10 s
def test_a_second_replay_at_the_same_time_fences_the_first(site: Site) -> None:
    """Wherever the first one is when the second begins and ends: no record is put back twice."""
    for number, step in enumerate(("after_open", "after_receipts", "after_produce", "before_commit"), 1):
        if number > 1:
            site.fold()  # what was put back is refused again: dead letters of its own
        others: list[replay.Report] = []

        def other(name: str, step: str = step, others: list[replay.Report] = others) -> None:
            if name == step and not others:
                others.append(replay.replay(site.letters, Wanted()))

        fenced = raises(UserError, Code.COMMAND_RUNNING, "runner")
        # Who reads the receipts afterwards has nothing left to do.
        with fenced if step != "after_open" else nullcontext():
            replay.replay(site.letters, Wanted(), other)
        assert len(others[0].done) == len(BROKEN)
        assert len(site.put_back()) == number * len(BROKEN)


@pytest.mark.promise("too-large-to-replay")
def test_a_record_that_is_too_large_keeps_no_other_one(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Its topic takes less than it did. All of them are in one transaction at first."""
    noise = os.urandom(80_000).hex().encode()  # no compression makes half of it
    produce(site.client, "runner.updates", [(b"7", b"no update"), (b"7", noise), (b"7", b"nor this")])
    site.fold()
    admin = connect(site.client)
    smaller = ConfigResource(
        ConfigResource.Type.TOPIC,
        "runner.updates",
        incremental_configs=[ConfigEntry("max.message.bytes", "50000", incremental_operation=AlterConfigOpType.SET)],
    )
    for answer in admin.incremental_alter_configs([smaller]).values():
        answer.result()
    done = said(capsys, "dead-letters", "replay", "runner", "--all", code=FAILED)

    ((place, why),) = done["failed"].items()
    (letter,) = site.letters.select(Wanted(open=True))
    assert (place, letter.length) == (str(letter.place), len(noise))
    assert why.startswith("runner.updates does not take it with the headers of a replay (MSG_SIZE_TOO_LARGE): raise")
    assert len(done["replayed"]) == len(site.put_back()) == len(BROKEN) + 2
    assert [one.value for one in site.put_back() if one.key == b"7"] == [BROKEN[b"7"], b"no update", b"nor this"]
    assert said(capsys, "dead-letters", "replay", "runner", "--all", code=FAILED) == {
        **done,
        "replayed": [],
        "replayed_before": len(BROKEN) + 2,
    }


def test_what_would_happen_is_said_without_a_write(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """By the handler as it is now, and with the states as they are now."""
    topology = site.topology
    produce(site.client, "runner.updates", [(b"1", update(1, 20, POISON_METERS)), (b"1", update(1, 21))])
    site.fold(version="with_bug")
    would = said(capsys, "dead-letters", "replay", "runner", "--all", "--dry-run", code=FAILED)["would"]

    assert Counter(what.partition(":")[0] for what in would.values()) == {
        "a dead letter again": len(BROKEN),
        "accepted, without effect": 1,  # a later update of the same user has passed
    }
    assert site.put_back() == []
    assert topology.replays not in connect(site.client).list_topics().topics


@pytest.mark.promise("dead-letters-once")
@pytest.mark.promise("bugs-count-once")
def test_what_a_bug_has_set_aside_counts_once_it_is_mended_and_replayed(site: Site) -> None:
    """And verify, which missed its effect, is valid again; also when the pipeline is started over with the mended handler,
    which would take the record where it lay first as well.
    """
    produce(site.client, "runner.updates", [(b"2", update(2, 1)), (b"2", update(2, 2, POISON_METERS))])
    site.fold(version="with_bug")
    with pytest.raises(AssertionError):
        judge(site.topology, site.client)
    report = replay.replay(site.letters, Wanted(reason="the handler raised"))
    assert len(report.done) == 1
    site.fold()
    counts = judge(site.topology, site.client).counts
    assert counts.dead == len(BROKEN) + 1

    derived = (*site.topology.outputs, *site.topology.dead.values(), site.topology.changelog)
    delete_topics(connect(site.client), derived)
    create_topics(site.topology, 2, site.client)
    site.fold()
    assert judge(site.topology, site.client).counts == counts
    assert replay.replay(site.letters, Wanted(reason="this record was replayed")).done == []


@pytest.mark.promise("dead-letters-dropped")
def test_what_a_bug_has_set_aside_never_counts_once_it_is_dropped(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """And verify, which missed its effect, is valid; also when the pipeline is reset with the mended handler, which would take
    the record where it lies.
    """
    produce(site.client, "runner.updates", [(b"2", update(2, 1)), (b"2", update(2, 2, POISON_METERS))])
    site.fold(version="with_bug")
    with pytest.raises(AssertionError):
        judge(site.topology, site.client)
    bug = ("--reason", "the handler raised")
    assert run(["dead-letters", "drop", "runner", *bug]) == USAGE
    assert code_of(capsys.readouterr().err, "why") is Code.ARGUMENT_WRONG
    assert run(["dead-letters", "drop", "runner", *bug, "--because", "x" * 501]) == USAGE
    assert code_of(capsys.readouterr().err, "501 characters, and a receipt keeps 500") is Code.ARGUMENT_WRONG
    because = (*bug, "--because", "a test event")
    (place,) = said(capsys, "dead-letters", "drop", "runner", *because, "--dry-run", code=FAILED)["would"]
    assert site.topology.replays not in connect(site.client).list_topics().topics
    assert said(capsys, "dead-letters", "drop", "runner", *because) == {
        "dropped": [place],
        "done_before": 0,
        "failed": {},
    }
    assert run(["dead-letters", "show", place]) == 0
    assert f"since then   dropped by {whoami()}: a test event, " in capsys.readouterr().out
    counts = judge(site.topology, site.client).counts
    assert counts.dead == len(BROKEN) + 1

    derived = (*site.topology.outputs, *site.topology.dead.values(), site.topology.changelog)
    delete_topics(connect(site.client), derived)
    create_topics(site.topology, 2, site.client)
    site.fold()
    assert judge(site.topology, site.client).counts == counts
    (letter,) = site.letters.select(Wanted(reason=f"this record was dropped by {whoami()}: a test event"))
    assert letter.source is not None
    assert said(capsys, "dead-letters", "list", "runner", "--key", "2", "--open") == []


@pytest.mark.promise("dead-letters-dropped")
@pytest.mark.promise("dead-letters-once")
def test_the_original_of_a_copy_that_was_dropped_or_replayed_is_not_copied_again(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reset copies repartitioned records anew, and the receipts name the copies of before."""
    producer = Producer(site.client)
    for user in (2, 3):
        astray = 1 - partition_of(str(user), 2)
        producer.produce("runner.updates", update(user, 1, POISON_METERS), b"astray", astray)
    assert producer.flush(20) == 0
    site.fold(version="with_bug")
    for user, command in ((2, ("drop", "--because", "a test event")), (3, ("replay",))):
        because = (*command, "runner", "--reason", "the handler raised", "--key", str(user))
        assert len(said(capsys, "dead-letters", *because)[f"{command[0]}ped" if user == 2 else "replayed"]) == 1
    site.fold()
    before = judge(site.topology, site.client).counts
    assert (before.repartitioned, before.dead) == (2, len(BROKEN) + 2)

    derived = (*site.topology.outputs, *site.topology.dead.values(), site.topology.changelog)
    delete_topics(connect(site.client), derived)
    create_topics(site.topology, 2, site.client)
    site.fold()
    after = judge(site.topology, site.client).counts
    assert (after.accepted, after.dead, after.repartitioned) == (before.accepted, before.dead, 0)
    assert len(said(capsys, "dead-letters", "list", "runner", "--open")) == len(BROKEN)
    assert replay.replay(site.letters, Wanted(reason="this record was")).done == []


@pytest.mark.promise("dead-letters-once")
def test_a_record_that_somebody_else_put_back_is_an_event_like_any_other(site: Site) -> None:
    """As a script would do it that reads a dead-letter topic and writes to the input."""
    (letter,) = site.letters.select(Wanted(key="9"))
    producer = Producer(site.client)
    producer.produce(
        "runner.updates", letter.value, letter.key, 0, headers=[(REPLAYS_HEADER, str(letter.source).encode())]
    )
    assert producer.flush(20) == 0
    site.fold()

    assert judge(site.topology, site.client).counts.dead == len(BROKEN) + 1


@pytest.mark.promise("dead-letters-once")
def test_what_retention_has_removed_comes_from_the_dead_letter_or_not_at_all(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """The small ones from there, without headers; of the large one a sentence says that it is gone."""
    ends = [TopicPartition("runner.updates", partition, OFFSET_END) for partition in range(2)]
    admin = connect(site.client)  # without it nobody answers
    for answer in admin.delete_records(ends).values():
        answer.result()
    done = said(capsys, "dead-letters", "replay", "runner", "--all", code=FAILED)

    assert len(done["replayed"]) == len(done["lacking"]) == 3
    ((place, why),) = done["failed"].items()
    assert "retention has removed runner.updates/" in why
    assert f"only the first 65,536 of its {len(LARGE):,} bytes" in why
    left = {("runner.updates", at): identity(admin, "runner.updates", at)[1:] for at in range(2)}
    assert {(one.key(), one.value()) for one in between(site.client, left)} == {
        item for item in BROKEN.items() if item[0] != b"8"
    }
    shown = said(capsys, "dead-letters", "show", place)
    assert bytes.fromhex(shown["value_hex"]) == LARGE[:65_536]
    assert shown["lacks"] == why
    dropped = said(capsys, "dead-letters", "drop", "runner", "--all", "--because", "it is lost")
    assert (dropped["dropped"], dropped["done_before"], dropped["failed"]) == ([place], 3, {})


@pytest.mark.promise("dead-letters-once")
def test_a_record_of_a_topic_that_was_made_again_is_not_taken_for_the_original(site: Site) -> None:
    delete_topics(connect(site.client), ("runner.updates",))
    create_topics(site.topology, 2, site.client)
    produce(site.client, "runner.updates", [(b"1", update(1, number)) for number in range(1, 30)])
    report = replay.replay(site.letters, Wanted())

    assert report.done == []
    assert all("runner.updates was made again since" in why for why in report.failed.values())
    assert replay.drop(site.letters, Wanted(), DROPPED) == report, "a receipt would withdraw what lies there now"


def test_receipts_that_cannot_be_read_are_refused_with_a_sentence(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those whose JSON is one, as a processor of its own; and it is not started again and again."""
    replay.replay(site.letters, Wanted(key="9"))
    body = {"version": 1, "topic_id": {}, "letter": "", "at_ms": 0}
    produce(site.client, site.topology.replays, [(b"runner.updates/0/1", json.dumps(body).encode())], 0)
    with instance(site.topology, site.client, site.home / "refused") as processor:
        assert processor.wait(60) == REFUSED
    told = (site.home / "refused").read_text(encoding="utf-8")
    assert "runner.replays/0/2 is no receipt of a replay: its fields are of other types." in told
    assert "Traceback" not in told

    assert run(["dead-letters", "list", "runner"]) == REFUSED
    assert code_of(capsys.readouterr().err, "runner.replays/0/2") is Code.REPLAYED
    admin = connect(site.client)  # without it nobody answers
    for answer in admin.delete_records([TopicPartition("runner.replays", 0, 1)]).values():
        answer.result()
    assert run(["dead-letters", "replay", "runner", "--all"]) == REFUSED
    assert code_of(capsys.readouterr().err, "offset 1") is Code.REPLAYED
