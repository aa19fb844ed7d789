"""The continuous verifier follows real handlers on a simulated log: no broker, no database, no clock.

What the handlers write is right. Then one record is written or hidden that makes it wrong, and exactly that is named.
"""

import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.verify.audit.pace import Pace
from onefold.verify.log import Place
from onefold.verify.record import ReadRecord, Source, source_of
from onefold.verify.verdict import CannotTell, Finding
from onefold.verify.writer_identity import SOURCE_HEADER
from onefold.workloads import averages, bank, campaigns, runner, sheets, trades
from onefold.workloads.shaping import Input, StreamShape
from tests.support.coded import raises
from tests.support.followed import PARTITIONS, Followed
from tests.verify.test_agreement_bounds import APPS
from tests.verify.test_each_output_alone import update

# A minute of the averages has an alarm when it has more than a hundred numbers.
COUNT, COUNT_OF_AVERAGES = 240, 1600
FEW = {bank: {"accounts": 20}, sheets: {"sheets": 2, "alone": True}}
DOMAINS = pytest.mark.parametrize("domain", APPS, ids=lambda domain: domain.WORKLOAD.name)
OUTPUTS = [(domain, topic) for domain in APPS for topic in domain.WORKLOAD.outputs]
EACH_OUTPUT = pytest.mark.parametrize(("domain", "topic"), OUTPUTS, ids=[topic for _, topic in OUTPUTS])
#: (kind, where, output)
Named = tuple[str, str, str | None]


def inputs(domain: ModuleType, seed: int = 1) -> list[Input]:
    count = COUNT_OF_AVERAGES if domain is averages else COUNT
    return list(domain.generate(seed, count, shape=StreamShape(hostile=0.05, keyless=0.05), **FEW.get(domain, {})))


def begun(domain: ModuleType) -> Followed:
    """Half of the inputs were there; the other half came since, and all of it was right."""
    made, followed = inputs(domain), Followed(APPS[domain].TOPOLOGY, domain.WORKLOAD)
    followed.send(made[: len(made) // 2])
    followed.begin()
    followed.send(made[len(made) // 2 :])
    assert followed.found() == []
    return followed


def named(found: list[Finding]) -> list[Named]:
    return [(one.kind, one.where, one.output) for one in found]


def records(followed: Followed) -> int:
    return sum(len(followed.driver.read(topic)) for topic in followed.workload.outputs)


def junk(followed: Followed, partition: int = 0) -> ReadRecord:
    """Have a dead letter written; returns it."""
    topic = followed.workload.inputs[0]
    followed.driver.send(topic, b"junk", partition=partition)
    followed.driver.run()
    [end] = [end for (_, p), end in followed.ends(f"{topic}.dead").items() if p == partition]
    entries = followed.driver.log.read(f"{topic}.dead", partition, 0, end)[0]
    offset, entry = entries[-1]
    return ReadRecord(f"{topic}.dead", partition, offset, entry.key, entry.value, list(entry.headers))


def of(record: ReadRecord, cause: ReadRecord) -> ReadRecord:
    """A record that names the same input as another one."""
    return record._replace(headers=[(SOURCE_HEADER, cause.header(SOURCE_HEADER))])


@DOMAINS
def test_what_handlers_write_is_right_in_whatever_portions_it_comes(domain: ModuleType) -> None:
    made, followed = inputs(domain, 2), Followed(APPS[domain].TOPOLOGY, domain.WORKLOAD)
    followed.begin()
    assert followed.found() == []
    at = 0
    for portion in (1, 2, 7, 40, len(made)):
        followed.send(made[at : at + portion])
        at += portion
        assert followed.found() == []
        assert followed.following.judged == records(followed), "each once"
    counts = dict(followed.following.counts)
    assert counts.pop("records") == sum(counts.values())
    assert followed.counted().items() <= counts.items()


@DOMAINS
def test_what_was_there_and_what_comes_then_is_judged_record_by_record(domain: ModuleType) -> None:
    made, followed = inputs(domain, 3), Followed(APPS[domain].TOPOLOGY, domain.WORKLOAD)
    followed.send(made[:100])
    followed.begin()
    assert followed.following.findings == []
    assert followed.following.judged == records(followed)
    followed.send(made[100:])
    assert followed.found() == []
    assert followed.following.judged == records(followed)


@DOMAINS
def test_a_step_that_leaves_input_records_is_not_all(domain: ModuleType) -> None:
    """Else a verifier that is far behind would call valid what it has not compared."""
    made, followed = inputs(domain, 3), Followed(APPS[domain].TOPOLOGY, domain.WORKLOAD)
    followed.begin(pace=Pace(step_s=-1.0))  # one input record a step
    followed.send(made)
    steps = 0
    while not followed.following.step():
        steps += 1
    assert followed.following.waiting == 0
    assert steps > 10


@DOMAINS
def test_versions_of_rows_are_dropped_once_they_are_in_the_tables_and_compared(domain: ModuleType) -> None:
    followed = begun(domain)
    assert followed.following.versions.kept > 0
    followed.following.land(followed.ends(*followed.workload.outputs))
    assert followed.following.versions.kept == 0


@DOMAINS
def test_results_of_a_task_whose_progress_is_not_known_yet_are_judged_when_it_comes(domain: ModuleType) -> None:
    made, followed = inputs(domain, 4), Followed(APPS[domain].TOPOLOGY, domain.WORKLOAD)
    followed.send(made[:100])
    changelog = followed.driver.topology.changelog
    followed.hidden |= {(changelog, 1, offset) for offset in range(followed.ends(changelog)[changelog, 1])}
    followed.begin()
    assert followed.following.findings == []
    assert domain is averages or followed.following.judged < records(followed)
    followed.send(made[100:])
    assert followed.found() == []
    assert followed.following.judged == records(followed)


@EACH_OUTPUT
@pytest.mark.promise("audit-names-wrong")
def test_an_output_record_that_should_not_be_there_is_named(domain: ModuleType, topic: str) -> None:
    """One after the other: written twice, unreadable, of no source, of a dead letter that comes with it or came before."""
    followed = begun(domain)
    record = followed.last(topic)
    doubled = followed.append(record)
    assert named(followed.found()) == [("doubled output", domain.WORKLOAD.outputs[topic].name, doubled)]
    for value in (b"junk", None):
        unreadable = followed.append(record._replace(value=value))
        assert named(followed.found()) == [("unreadable output", topic, unreadable)]
    for nameless_record in (record._replace(headers=[]), record._replace(headers=[(SOURCE_HEADER, b"x/1")])):
        nameless = followed.append(nameless_record)
        assert named(followed.found()) == [("phantom output", topic, nameless)]
    for late in (False, True):
        letter = junk(followed, record.partition)
        if late:
            assert followed.found() == []
        phantom = followed.append(of(record, letter))
        assert named(followed.found()) == [("phantom output", topic, phantom)]
    assert followed.found() == [], "each once"


@EACH_OUTPUT
@pytest.mark.promise("audit-names-wrong")
def test_an_output_record_under_another_key_is_named(domain: ModuleType, topic: str) -> None:
    followed = Followed(APPS[domain].TOPOLOGY, domain.WORKLOAD)
    followed.begin()
    followed.send(inputs(domain))
    right = followed.last(topic)
    followed.hidden.add(right[:3])
    place = followed.append(right._replace(key=b"x"))
    assert named(followed.found()) == [("wrong output", topic, place)]


@EACH_OUTPUT
@pytest.mark.promise("audit-names-wrong")
def test_a_row_of_which_nothing_was_written_is_named(domain: ModuleType, topic: str) -> None:
    followed = Followed(APPS[domain].TOPOLOGY, domain.WORKLOAD)
    followed.begin()
    followed.send(inputs(domain))
    table = domain.WORKLOAD.outputs[topic]
    rows = [tuple(row[name] for name in table.key) for row in followed.driver.read(topic)]
    log = followed.driver.log
    places = [(topic, p, offset) for p in range(PARTITIONS) for offset, _ in log.read(topic, p, 0)[0]]
    followed.hidden |= {place for place, row in zip(places, rows, strict=True) if row == rows[-1]}
    assert named(followed.found()) == [("missing output", topic, None)]
    assert followed.found() == [], "once"


@DOMAINS
@pytest.mark.promise("audit-names-wrong")
def test_what_is_wrong_with_dead_letters_is_named(domain: ModuleType) -> None:
    followed = begun(domain)
    right = junk(followed)
    topic = right.topic
    place = followed.append(right)
    assert named(followed.found()) == [("doubled dead letter", topic, place)]

    missing = junk(followed)
    followed.hidden.add(missing[:3])
    assert named(followed.found()) == [("missing dead letter", topic, None)]

    changed = junk(followed)
    followed.hidden.add(changed[:3])
    place = followed.append(changed._replace(value=b"other junk"))
    assert named(followed.found()) == [("changed dead letter", topic, place)]

    output = next(topic for topic in domain.WORKLOAD.outputs if followed.driver.read(topic))
    place = followed.append(of(right, followed.last(output)))
    assert named(followed.found()) == [("extra dead letter", topic, place)]

    place = followed.append(right._replace(headers=[]))
    assert named(followed.found()) == [("phantom output", topic, place)]
    assert followed.found() == [], "each once"


FED = [(bank, bank.DEPOSITS), (sheets, sheets.IMPORTS), (sheets, sheets.JOBS), (sheets, sheets.OBJECTS)]


@pytest.mark.parametrize(("domain", "topic"), FED, ids=[topic for _, topic in FED])
@pytest.mark.promise("audit-names-wrong")
def test_what_is_wrong_with_what_the_pipeline_feeds_itself_or_a_queue_is_named(domain: ModuleType, topic: str) -> None:
    followed = begun(domain)
    record = followed.last(topic)

    def after() -> list[Named]:
        followed.driver.run()
        return named(followed.found())

    place = followed.append(record)
    assert after() == [("doubled output", topic, place)]
    place = followed.append(record._replace(headers=[]))
    assert after() == ([] if topic in domain.WORKLOAD.queues else [("phantom output", topic, place)])
    place = followed.append(record._replace(value=b"junk"))
    assert after() == ([("unreadable output", topic, place)] if topic in domain.WORKLOAD.queues else [])


@pytest.mark.parametrize("topic", sheets.WORKLOAD.queues)
@pytest.mark.promise("audit-names-wrong")
def test_a_job_in_another_partition_is_named(topic: str) -> None:
    """Two workers have jobs of one key then, in any order."""
    followed = Followed(APPS[sheets].TOPOLOGY, sheets.WORKLOAD)
    followed.begin()
    followed.send([*inputs(sheets), *inputs(sheets, 2)])
    right = followed.last(topic)
    followed.hidden.add(right[:3])
    place = followed.append(right._replace(partition=1 - right.partition))
    assert named(followed.found()) == [("wrong output", topic, place)]
    assert followed.found() == [], "once"


@pytest.mark.parametrize("topic", sheets.WORKLOAD.queues)
def test_a_job_that_was_asked_for_and_never_written_is_named(topic: str) -> None:
    followed = Followed(APPS[sheets].TOPOLOGY, sheets.WORKLOAD)
    followed.begin()
    followed.send(inputs(sheets))
    followed.hidden.add(followed.last(topic)[:3])
    assert named(followed.found()) == [("missing output", topic, None)]
    assert followed.found() == [], "once"


@DOMAINS
def test_of_progress_a_topic_that_is_not_read_says_nothing_and_another_of_its_name_ends_it(domain: ModuleType) -> None:
    followed = begun(domain)
    changelog = followed.driver.topology.changelog
    told = b'{"inputs": {"%s": {"topic_id": "%s", "next_offset": 0}}}'
    followed.driver.log.append(changelog, b"p", told.replace(b"%s", b"another"), partition=0)
    assert followed.found() == []
    topic = domain.WORKLOAD.inputs[0].encode()
    followed.driver.log.append(changelog, b"p", told % (topic, b"another"), partition=0)
    with raises(CannotTell, Code.TOPIC_RECREATED):
        followed.found()


@pytest.mark.parametrize("domain", [averages, campaigns, runner, trades], ids=lambda domain: domain.WORKLOAD.name)
@pytest.mark.promise("audit-hands-over")
def test_what_was_compared_is_not_read_again_by_the_next(domain: ModuleType, tmp_path: Path) -> None:
    """The next one says the same as one from the start, and finds what is wrong with what the first one has compared."""
    made, followed = inputs(domain, 5), Followed(APPS[domain].TOPOLOGY, domain.WORKLOAD)
    followed.send(made[:100])
    followed.begin(tmp_path)
    followed.send(made[100:180])
    assert followed.found() == []
    assert followed.following.leaves
    assert followed.following.leave() == ""
    compared = followed.following.judged
    followed.send(made[180:])

    said = []
    for folder in (tmp_path, None):
        followed.begin(folder)
        assert followed.found() == []
        said.append((followed.following.records, followed.following.judged, followed.following.counts))
    (read, judged, counts), (all_of_them, all_judged, all_counts) = said
    assert (judged, counts) == (all_judged - compared, all_counts)
    assert read < all_of_them - 180

    followed.begin(tmp_path)
    output = next(topic for topic in domain.WORKLOAD.outputs if followed.driver.read(topic))
    place = followed.append(followed.last(output))
    assert named(followed.found()) == [("doubled output", domain.WORKLOAD.outputs[output].name, place)]


def test_a_progress_that_goes_back_before_a_dead_letter_is_no_ground_for_a_verdict(tmp_path: Path) -> None:
    """The letter is known from the checkpoint of the verifier before."""
    followed = begun(runner)
    changelog = followed.driver.topology.changelog
    told = [entry for _, entry in followed.driver.log.read(changelog, 0, 0)[0] if entry.key == b"p"][-1]
    source = source_of(junk(followed).header(SOURCE_HEADER))
    followed.begin(tmp_path)
    assert followed.found() == []
    assert followed.following.leave() == ""
    followed.driver.log.append(changelog, b"p", told.value, partition=0)
    with raises(CannotTell, Code.PROGRESS_UNKNOWN, f"has taken {source},"):
        followed.begin(tmp_path)


@pytest.mark.parametrize("topic", ["runner.stats", "runner.updates.dead"])
def test_results_behind_an_open_transaction_are_waited_for_and_that_is_said(topic: str) -> None:
    followed = begun(runner)
    log = followed.driver.log
    epoch = log.init("somebody")
    log.write("somebody", epoch, topic, 1, b"k", b"junk", ())
    followed.send(inputs(runner, 6))
    for _ in range(5):
        followed.following.step()
    assert followed.following.waiting > 0
    end = followed.following.positions[topic, 1]
    assert followed.following.held(0.0) == f"a transaction is open on {topic}/1, from offset {end} on"
    assert followed.following.held(60.0) == ""
    since = time.monotonic()
    for _ in range(5):
        followed.following.step()
    assert followed.following.held(time.monotonic() - since) != "", "a step that can read nothing is no new beginning"
    log.end("somebody", epoch, commit=False)
    assert followed.found() == []
    assert followed.following.held(0.0) == ""


def hide_between(followed: Followed, topic: str, ends: dict[Place, int]) -> str:
    """Hide an output record from before these offsets whose row is written again behind them; returns the input that it names."""
    log, key = followed.driver.log, followed.workload.outputs[topic].key
    rows = [tuple(row[name] for name in key) for row in followed.driver.read(topic)]
    entries = [(p, offset, entry) for p in range(PARTITIONS) for offset, entry in log.read(topic, p, 0)[0]]
    later = {row for row, (p, offset, _) in zip(rows, entries, strict=True) if offset >= ends[topic, p]}
    for row, (p, offset, entry) in reversed([*zip(rows, entries, strict=True)]):
        if offset < ends[topic, p] and row in later:
            followed.hidden.add((topic, p, offset))
            return str(source_of(dict(entry.headers)[SOURCE_HEADER]))
    raise AssertionError("no row was written again")


AGAIN = [
    (averages, averages.ALARMS.topic),
    (campaigns, campaigns.TOTALS.topic),
    (runner, runner.TENDENCY.topic),
    (sheets, "sheets.sheets"),
    (trades, trades.CURRENT.topic),
]


@pytest.mark.parametrize("began", ["before", "behind"])
@pytest.mark.parametrize(("domain", "topic"), AGAIN, ids=[topic for _, topic in AGAIN])
@pytest.mark.promise("audit-names-wrong", "verify-finds-wrong")
def test_an_output_record_that_was_not_written_before_a_later_one_of_its_row_is_named(
    domain: ModuleType, topic: str, began: str
) -> None:
    """Its transaction had ended when the row changed again. Not in a compacted topic, from which Kafka removes such records."""
    made, followed = inputs(domain, 6), Followed(APPS[domain].TOPOLOGY, domain.WORKLOAD)
    if began == "before":
        followed.begin()
        assert followed.found() == []
    followed.send(made[: len(made) // 2])
    ends = followed.ends(topic)
    followed.send(made[len(made) // 2 :])
    source = hide_between(followed, topic, ends)
    for compacted in ({topic}, set[str]()) if began == "behind" else ((set[str](),)):
        followed.driver.log.compacted = compacted
        if began == "behind":
            followed.begin()
        missing = [one for one in followed.found() if one.kind == "missing output"]
        assert [(one.where, one.source) for one in missing] == ([] if compacted else [(topic, source)])
        assert [one for one in followed.found() if one.kind == "missing output"] == [], "once"
    missing = [one for one in followed.verified() if one.kind == "missing output"]
    assert [(one.where, one.source) for one in missing] == [(topic, source)]


class PutsAgain(runner.RunnerModel):
    """A model that also takes an update that comes twice, and puts the row that is there."""

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Take the update."""
        taken, key = super().apply(value, source), (value["user_id"],)
        if not taken:
            self._tendency[key] = self._tendency[key][0], source
        return taken


def test_a_row_that_the_model_puts_as_it_was_needs_no_output_record() -> None:
    followed = Followed(APPS[runner].TOPOLOGY, replace(runner.WORKLOAD, model=PutsAgain))
    followed.begin()
    for sequence in (1, 1, 2):
        followed.send([update(1, sequence)])
    assert followed.found() == followed.verified() == []
