"""The auditor names what diverges while work goes on: in outputs, in tables that are behind them, and in the ledger.

What is right is put into topics and tables by the judge's own model, and then one thing is spoiled. The auditor takes its turns
in the test's own thread, so that nothing has to be waited for but its deadline.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.error_codes import Code
from onefold.verify.audit.auditor import Auditor, Standing, refusal
from onefold.verify.audit.pace import Pace
from onefold.verify.checkpoints import Checkpoints
from onefold.verify.fates import Fate
from onefold.verify.kafka import Kafka
from onefold.verify.log import Log
from onefold.verify.record import Record, Source
from onefold.verify.verdict import INVALID, UNKNOWN, VALID, CannotTell, Finding, Verdict
from onefold.verify.verifier import verify
from onefold.workloads import averages, bank, campaigns, runner, sheets, trades
from onefold.workloads.shaping import Input, Shape
from tests.support.infrastructure import set_topic
from tests.support.stage import ChangedRule, Stage
from tests.support.waiting import eventually
from tests.support.withholding import withholding

SHAPE = Shape(hostile=0.05, keyless=0.05)
COUNT = 300
# What an operator is promised, from the commit to the name.
NAMED_WITHIN_S = 5.0


@pytest.fixture
def stage(bootstrap_servers: str, database: str, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(ChangedRule, "changed", None)
    made = Stage(bootstrap_servers, database, replace(campaigns.WORKLOAD, model=ChangedRule))
    play(made, 1)
    return made


@pytest.fixture
def auditor(stage: Stage) -> Iterator[Auditor]:
    """It has found everything right so far."""
    with begun(stage) as made:
        yield made


@contextmanager
def begun(stage: Stage, **more: Any) -> Iterator[Auditor]:
    """An auditor that has found everything right so far."""
    with closing(of(stage, **more)) as made:
        assert ran(made, whole).outcome == VALID, made.standing
        yield made


def of(stage: Stage, **more: Any) -> Auditor:
    return Auditor(stage.workload.name, client=stage.client, dsn=stage.dsn, **more)


def play(stage: Stage, seed: int, count: int = COUNT) -> None:
    stage.play(campaigns.generate(seed, count, shape=SHAPE, campaigns=40))


def whole(standing: Standing) -> bool:
    """Every row came round, and it is not behind: between turns a test may take longer than an auditor ever waits."""
    return standing.cycle_s is not None and standing.outcome != UNKNOWN


def ran(auditor: Auditor, enough: Callable[[Standing], bool], seconds: float = 30) -> Standing:
    """Takes turns until it is enough."""
    deadline = time.monotonic() + seconds
    standing = auditor.run(lambda standing: None, lambda pause: time.monotonic() > deadline, enough)
    assert enough(standing), standing
    return standing


def named(auditor: Auditor) -> Finding:
    """The first thing that it finds from now on; it has to be soon."""
    before = len(auditor.standing.findings)
    standing = ran(auditor, lambda standing: len(standing.findings) > before, NAMED_WITHIN_S)
    assert standing.outcome == INVALID
    return standing.findings[before]


@pytest.mark.promise("audit-names-wrong")
def test_what_goes_on_rightly_stays_valid(stage: Stage, auditor: Auditor) -> None:
    for seed in (2, 3):
        records, judged = auditor.standing.records, auditor.standing.judged
        play(stage, seed)
        ran(auditor, lambda standing: standing.waiting == 0 and standing.judged > judged + 50)  # noqa: B023 - asked at once
        auditor.standing.cycle_s = None
        standing = ran(auditor, whole)
        assert (standing.outcome, standing.findings) == (VALID, [])
        assert standing.records > records + COUNT


def test_while_it_reads_what_was_there_it_says_so(stage: Stage) -> None:
    """That may take minutes, and whoever asks for its health takes silence for a process that hangs."""
    with closing(of(stage, kafka=Kafka(log=partial(Log, batch=50)))) as another:
        told: list[int] = []
        another.run(lambda standing: told.append(standing.reads), lambda pause: False, lambda standing: True)
    assert told == [*range(1, len(told)), 0], "0 after its first turn, in which it has read all"
    assert len(told) > 5, "of hundreds of records, fifty at a time"


def test_far_behind_it_goes_on_in_steps_and_looks_at_tables_in_between(stage: Stage) -> None:
    """One input a step here, and 20 offsets of a partition read: what is wrong is named long before it is level."""
    pace = Pace(step_s=-1.0, step_offsets=20, look_every_s=0.0, look_every_max_s=0.0)
    with begun(stage, pace=pace) as auditor, psycopg.connect(stage.dsn, autocommit=True) as connection:
        for seed in (2, 3):
            play(stage, seed, 60)
        turns = iter(range(5))
        ran(auditor, lambda standing: next(turns, None) is None)
        connection.execute("UPDATE campaigns.totals SET sent_1 = sent_1 + 1 WHERE id = 1")
        assert named(auditor).kind == "different row"
        assert auditor.standing.waiting > 0
        connection.execute("UPDATE campaigns.totals SET sent_1 = sent_1 - 1 WHERE id = 1")
        standing = ran(auditor, lambda standing: standing.waiting == 0)
        assert len(standing.findings) == 1, "all the rest is right"


@pytest.mark.promise("audit-behind")
def test_far_behind_it_does_not_call_valid_what_it_has_not_compared(stage: Stage) -> None:
    """One input a step: it sees the tables, and their rows are right; what the processor has written it compares much later."""
    withheld: set[str] = set()
    with begun(stage, pace=Pace(step_s=-1.0, behind_s=0.5), kafka=withholding(withheld)) as auditor:
        play(stage, 2)
        ran(auditor, lambda standing: standing.waiting > 0)
        since = time.monotonic()
        eventually(lambda: time.monotonic() > since + 0.5, 5, "it is far behind")
        standing = ran(auditor, lambda standing: standing.outcome == UNKNOWN)
        assert standing.reason == "it is more than 0 s behind what the processor has written"
        assert standing.waiting > 0
        standing = ran(auditor, lambda standing: standing.outcome == VALID)
        assert (standing.waiting, standing.findings) == (0, [])
        assert standing.behind_s is not None
        assert standing.behind_s < 0.5

        withheld.add("campaigns.changelog")
        play(stage, 3)
        standing = ran(auditor, lambda standing: standing.outcome == UNKNOWN)
        assert standing.findings == [], "nor what it has not read that the processor has taken"


def test_a_record_that_was_taken_by_half_is_taken_anew(
    stage: Stage, auditor: Auditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a schema cannot be looked up: it is not left out, and what had been noted of it counts once."""
    assert auditor._following is not None
    oracle = auditor._following._state.oracle
    feed, left = oracle.feed, iter(range(20))

    def fails(record: Record) -> int:
        fate = feed(record)
        if next(left, None) is None:
            raise CannotTell(Code.KAFKA_SILENT, "the schema registry does not answer")
        return fate

    monkeypatch.setattr(oracle, "feed", fails)
    play(stage, 2)
    standing = ran(auditor, lambda standing: standing.troubled)
    assert (standing.outcome, standing.reason) == (UNKNOWN, "the schema registry does not answer")
    assert standing.code == str(Code.KAFKA_SILENT)
    standing = ran(auditor, lambda standing: not standing.troubled and whole(standing) and standing.waiting == 0)
    assert (standing.outcome, standing.findings, standing.code) == (VALID, [], "")
    assert {name: standing.counts[name] for name in stage.expected.counts.as_stored()} == (
        stage.expected.counts.as_stored()
    )


def test_results_that_are_read_before_their_inputs_wait_for_them(stage: Stage) -> None:
    """As when there are many more inputs than results, and the auditor is far behind."""
    withheld: set[str] = set()
    with begun(stage, kafka=withholding(withheld)) as auditor:
        judged = auditor.standing.judged
        withheld.add(campaigns.TOPIC)
        play(stage, 1)
        send(stage, 1)
        turns = iter(range(5))
        standing = ran(auditor, lambda standing: next(turns, None) is None)
        assert (standing.waiting, standing.judged) == (0, judged), "the inputs are not read"
        withheld.clear()
        standing = ran(auditor, lambda standing: standing.judged > judged)
        assert (standing.outcome, standing.findings) == (VALID, [])


@pytest.mark.promise("audit-names-wrong")
def test_what_sql_has_done_is_named(stage: Stage, auditor: Auditor) -> None:
    """One thing after the other: each is named by itself."""
    spoiled = (
        ("UPDATE campaigns.totals SET sent_1 = sent_1 + 1 WHERE id = 1", "different row", "campaigns.totals"),
        ("DELETE FROM campaigns.totals WHERE id = 2", "missing row", "campaigns.totals"),
        ("INSERT INTO campaigns.sends SELECT * FROM away", "extra row", "campaigns.sends"),
        (
            "DELETE FROM onefold.ledger WHERE topic = 'campaigns.totals' AND partition = 1",
            "wrong ledger",
            "onefold.ledger",
        ),
    )
    both = (
        "WITH gone AS (DELETE FROM campaigns.sends WHERE (id, date) ="
        " (SELECT id, date FROM campaigns.sends WHERE id = 1 LIMIT 1)) INSERT INTO campaigns.sends SELECT * FROM away"
    )
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE away AS SELECT * FROM campaigns.sends LIMIT 1")
        connection.execute("UPDATE away SET date = date + interval '8 years'")
        connection.execute(both.encode())
        ran(
            auditor,
            lambda standing: {"extra row", "missing row"} == {one.kind for one in standing.findings},
            NAMED_WITHIN_S,
        )
        connection.execute("UPDATE away SET date = date + interval '1 year'")
        for spoil, kind, where in spoiled:
            assert connection.execute(spoil.encode()).rowcount == 1
            found = named(auditor)
            assert (found.kind, found.where) == (kind, where)


@pytest.mark.promise("audit-names-wrong")
def test_what_compaction_may_explain_is_no_proof(stage: Stage, auditor: Auditor) -> None:
    """A wrong row while an input is compacted, and then a wrong ledger, which no record of the input can explain."""
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        set_topic(stage.client, campaigns.TOPIC, cleanup_policy="compact")
        try:
            connection.execute("UPDATE campaigns.totals SET sent_1 = sent_1 + 1 WHERE id = 1")
            standing = ran(auditor, lambda standing: bool(standing.findings), NAMED_WITHIN_S)
            assert (standing.outcome, standing.code) == (UNKNOWN, str(Code.RECORDS_DELETED))
            assert f"{campaigns.TOPIC} is compacted" in standing.reason
            connection.execute("DELETE FROM onefold.ledger WHERE topic = 'campaigns.totals' AND partition = 1")
            assert ran(auditor, lambda standing: len(standing.findings) > 1, NAMED_WITHIN_S).outcome == INVALID
        finally:
            set_topic(stage.client, campaigns.TOPIC, cleanup_policy="delete")


def one_too_many(value: dict[str, Any]) -> bool:
    value["sent"] += 1
    return True


def not_the_first(value: dict[str, Any]) -> bool:
    return bool(value["id"] != NEW)


# No campaign of the generator's.
NEW = 5_000_000


def send(stage: Stage, day: int) -> None:
    """A record of a campaign that nobody has heard of."""
    value = b'{"id": %d, "email": "A", "subject": "s", "sent": 7, "date": "2021-12-%02d 12:00:00"}' % (NEW, day)
    stage.play([Input(campaigns.TOPIC, b"%d" % NEW, value)])


@pytest.mark.promise("audit-names-wrong")
@pytest.mark.parametrize(
    ("rule", "kind"),
    [(one_too_many, "wrong output"), (not_the_first, "missing output")],
    ids=["another value", "nothing"],
)
def test_a_changed_rule_is_named_by_its_first_output(
    stage: Stage, auditor: Auditor, monkeypatch: pytest.MonkeyPatch, rule: Callable[[dict[str, Any]], bool], kind: str
) -> None:
    monkeypatch.setattr(ChangedRule, "changed", staticmethod(rule))
    send(stage, 1)
    # Where the rule makes nothing of a record, the processor's counts differ, too.
    standing = ran(auditor, lambda standing: any(one.kind == kind for one in standing.findings), NAMED_WITHIN_S)
    found = next(one for one in standing.findings if one.kind == kind)
    assert found.key["id"] == NEW
    assert found.where in ("campaigns.totals", "campaigns.accepted")
    assert (found.source or "").startswith("campaigns.sends/")
    if kind == "wrong output":
        assert (8, 7) in {(wrong, right) for right, wrong in found.columns.values()}


@pytest.mark.promise("audit-names-wrong")
def test_what_is_written_twice_is_named(stage: Stage, auditor: Auditor) -> None:
    """An output record of a row, whose table is none the wiser; and a dead letter."""
    totals = stage.workload.outputs["campaigns.totals"]
    place = stage.write(totals, (1,))
    stage.flush()
    found = named(auditor)
    assert (found.kind, found.output, found.key) == ("doubled output", place, {"id": 1})

    letter = stage.bury(next(iter(stage.expected.dead)))
    stage.report_progress()
    stage.flush()
    found = named(auditor)
    assert (found.kind, found.output) == ("doubled dead letter", letter)


@pytest.mark.promise("audit-names-wrong")
def test_an_output_that_nothing_asks_for_is_named(stage: Stage, auditor: Auditor) -> None:
    """It names an input record that is no news, and comes long after that one's results."""
    source = next(
        Source(*record[:3])
        for record in stage.originals.values()
        if stage.expected.fate(Source(*record[:3])) == Fate.IGNORED
    )
    totals = stage.workload.outputs["campaigns.totals"]
    key = next(key for key, (_, last) in stage.expected.model.rows[totals.name].items() if last[1] != source.partition)
    place = stage.write(totals, key, source)
    stage.flush()
    found = named(auditor)
    assert (found.kind, found.output, found.source) == ("phantom output", place, str(source))
    assert found.text == "that input record changes nothing"


def test_it_goes_on_from_what_was_proved(stage: Stage, tmp_path: Path) -> None:
    """From a verdict's checkpoint, and finds also what is wrong with what that has proved."""
    said = verify(stage.workload.name, client=stage.client, dsn=stage.dsn, timeout_s=0.0, checkpoints=tmp_path)
    assert said.outcome == VALID
    play(stage, 2)
    with closing(of(stage, checkpoints=tmp_path)) as auditor:
        standing = ran(auditor, whole)
        assert (standing.outcome, standing.findings) == (VALID, [])
        assert 0 < standing.records < said.counts["records"] * 2
        assert standing.counts["records"] > said.counts["records"] + COUNT / 2
        with psycopg.connect(stage.dsn) as connection:
            connection.execute("UPDATE campaigns.sends SET sent = sent + 1 WHERE id = 1")
        assert named(auditor).kind == "different row"


@pytest.mark.promise("audit-hands-over")
def test_what_it_has_compared_it_leaves_to_the_next_judge(stage: Stage, tmp_path: Path) -> None:
    """In the middle of the work, with outputs read whose inputs it has not taken: a verdict that goes on from there says the same
    as one from the start, and so does the next auditor; and what is wrong with what was there before is found.
    """
    pace = Pace(leave_every_s=0.0, leave_share=1.0, behind_s=1_000.0)  # it is held back here
    withheld: set[str] = set()

    def judged(**more: Any) -> Verdict:
        return verify(stage.workload.name, client=stage.client, dsn=stage.dsn, timeout_s=0.0, **more)

    def is_left(standing: Standing) -> bool:
        """The newest checkpoint has every output, and of the inputs only those that the model has taken."""
        newest = next(Checkpoints(tmp_path, stage.workload.name).newest({}), None)
        if newest is None or newest[0].records != standing.records - standing.waiting:
            return False
        at, ends = newest[0].positions, stage.ends
        return all(at[place] == ends[place] for place in at if place[0] in stage.workload.outputs)

    with closing(of(stage, checkpoints=tmp_path, pace=pace, kafka=withholding(withheld))) as auditor:
        ran(auditor, whole)
        withheld.add("campaigns.changelog")
        play(stage, 2)
        standing = ran(auditor, lambda standing: standing.waiting > 0 and is_left(standing))
        assert (standing.findings, standing.unkept) == ([], "")
        proved = standing.records - standing.waiting
    left, again = tmp_path / "left", tmp_path / "again"
    for folder in (left, again):
        shutil.copytree(tmp_path / stage.workload.name, folder / stage.workload.name)
    said, all_of_it = judged(checkpoints=left), judged()
    assert (said.outcome, all_of_it.outcome) == (VALID, VALID)
    assert (said.counts, said.checks) == (all_of_it.counts, all_of_it.checks)
    assert (said.proved, all_of_it.proved) == (proved, 0)
    with closing(of(stage, checkpoints=again, pace=pace, kafka=withholding(withheld))) as auditor:
        standing = ran(auditor, lambda standing: standing.troubled)
        assert "the processor does not say that it has taken campaigns.sends/" in standing.reason
        assert standing.findings == [], "outputs that are ahead of what the processor says are not made up"
    with closing(of(stage, checkpoints=again, pace=pace)) as auditor:
        standing = ran(auditor, whole)
        assert (standing.outcome, standing.findings) == (VALID, [])
        assert standing.counts == said.counts
    assert judged(checkpoints=again).outcome == VALID, "from what that one has left in its turn"
    place = stage.write(stage.workload.outputs["campaigns.totals"], (1,))
    stage.report_progress()
    stage.flush()
    assert ("doubled output", place) in {(one.kind, one.output) for one in judged(checkpoints=again).findings}


def test_where_it_cannot_see_it_says_so_and_goes_on_later(stage: Stage, auditor: Auditor) -> None:
    """A database that is away is no finding, and nothing is valid meanwhile."""
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute("ALTER SCHEMA onefold RENAME TO elsewhere")
        standing = ran(auditor, lambda standing: standing.troubled)
        assert (standing.outcome, standing.findings) == (UNKNOWN, [])
        assert "does not answer as Onefold's would" in standing.reason
        connection.execute("ALTER SCHEMA elsewhere RENAME TO onefold")
    assert ran(auditor, lambda standing: not standing.troubled).outcome == VALID


def test_a_pipeline_that_is_not_audited_is_refused() -> None:
    """By a sentence, and never by a *valid*."""
    assert [refusal(one.WORKLOAD) for one in (trades, runner, campaigns, averages, bank, sheets)] == [""] * 6
    bare = replace(trades.WORKLOAD, tables=(trades.CURRENT, replace(trades.RISK, sums=None)))
    assert "its model does not say what trades.risk is the sum of" in refusal(bare)
