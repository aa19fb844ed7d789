"""What was proved before is read on from, and nothing that is wrong can hide behind it."""

import hashlib
import json
import pickle
import shutil
import time
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psycopg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from onefold.processor.testing import SimulatedLog
from onefold.verify import checkpoints as kept
from onefold.verify.audit.auditor import Auditor, AuditStatus
from onefold.verify.audit.pace import Pace
from onefold.verify.checkpoints import Checkpoints, VerifierCheckpoint, environment_of
from onefold.verify.contracts import contracts
from onefold.verify.expect import DEAD_LETTER_BYTES_MAX, Oracle
from onefold.verify.partitioner import partition_of
from onefold.verify.record import ReadRecord, Source
from onefold.verify.replays import Replays
from onefold.verify.state import Proved, begin, topics_of
from onefold.verify.verdict import INVALID, UNKNOWN, VALID, Verdict
from onefold.verify.verifier import verify
from onefold.verify.writer_identity import PIPELINE_HEADER, WriterIdentity
from onefold.workloads import averages, runner
from onefold.workloads.shaping import StreamShape
from tests.support.simulated_stage import JudgesLog
from tests.support.stage import Stage
from tests.verify.test_generators import DOMAINS, PARTITIONS, log_of

SHAPE = StreamShape(hostile=0.05, keyless=0.05)
COUNT = 300
HEAD = VerifierCheckpoint("a judge", {"t": "id"}, {("t", 0): 7}, "", 7, "2026-01-01T00:00:00.000+00:00")


@pytest.fixture
def stage(bootstrap_servers: str, database: str) -> Stage:
    """A faultless result of its own."""
    made = Stage(bootstrap_servers, database, runner.WORKLOAD)
    made.play(runner.generate(1, COUNT, shape=SHAPE, users=30))
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "judge"


def judged(stage: Stage, folder: Path, **more: Any) -> Verdict:
    return verify(
        stage.workload.name, client=stage.client, dsn=stage.dsn, timeout_s=0.0, checkpoints=folder, **more
    )  # fmt: skip


def more(stage: Stage, seed: int) -> None:
    stage.play(runner.generate(seed, COUNT, shape=SHAPE, users=30))


def forget(stage: Stage) -> None:
    """Of the inputs all that is there now, as retention does it."""
    places = [TopicPartition("runner.updates", number, stage._ends["runner.updates", number]) for number in (0, 1)]
    admin = AdminClient(stage.client)  # who is let go of answers nothing
    for done in admin.delete_records(places).values():
        done.result(30)


def audited(stage: Stage, folder: Path) -> AuditStatus:
    """What a new auditor says when all rows have come round, or when it cannot begin."""
    name, pace = stage.workload.name, Pace(leave_every_s=0.0)
    with closing(Auditor(name, client=stage.client, dsn=stage.dsn, checkpoints=folder, pace=pace)) as auditor:
        deadline = time.monotonic() + 30
        return auditor.run(
            lambda standing: None,
            lambda pause: time.monotonic() > deadline,
            lambda standing: (standing.cycle_s is not None and standing.outcome != UNKNOWN) or standing.troubled,
        )


def files(folder: Path) -> list[Path]:
    return sorted((folder / "runner").iterdir(), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.promise("verify-reads-on")
def test_a_verdict_reads_on_from_the_one_before(stage: Stage, folder: Path) -> None:
    first = judged(stage, folder)
    assert (first.outcome, first.proved, first.proved_at, first.note) == (VALID, 0, "", "")
    more(stage, 2)
    second = judged(stage, folder)
    assert (second.outcome, second.findings) == (VALID, [])
    assert second.proved >= first.counts["records"]
    assert second.counts["records"] > first.counts["records"] + COUNT * 0.9
    whole = judged(stage, folder, from_start=True)
    assert (whole.outcome, whole.proved, whole.counts) == (VALID, 0, second.counts)
    assert whole.checks == second.checks
    more(stage, 3)
    assert judged(stage, folder).outcome == VALID
    assert len(files(folder)) == 2, "older ones are of no use"


@pytest.mark.promise("verify-reads-on")
def test_what_is_wrong_is_found_whether_it_is_old_or_new(stage: Stage, folder: Path) -> None:
    assert judged(stage, folder).outcome == VALID
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.was AS SELECT * FROM runner.messages LIMIT 1")
        connection.execute(
            "DELETE FROM runner.messages m USING public.was w"
            ' WHERE (m.topic, m.partition, m."offset") = (w.topic, w.partition, w."offset")'
        )
        verdict = judged(stage, folder)
        assert (verdict.outcome, [finding.kind for finding in verdict.findings]) == (INVALID, ["missing row"])
        assert verdict.proved > 0
        assert len(files(folder)) == 1, "only what is right is kept"
        connection.execute("INSERT INTO runner.messages SELECT * FROM public.was")
    assert judged(stage, folder).outcome == VALID
    messages = next(table for table in stage.workload.tables if table.name == "runner.messages")
    doubled = stage.write(messages, next(iter(stage.expected.model.rows["runner.messages"])))
    stage.flush()
    stage.report_progress()
    stage.flush()
    found = [(finding.kind, finding.output) for finding in judged(stage, folder).findings if finding.output == doubled]
    assert ("doubled output", doubled) in found, "of an old record, by what is known of it"


def test_a_log_whose_beginning_is_gone_is_still_judged(stage: Stage, folder: Path) -> None:
    """As retention does it; from the beginning nobody can tell any more."""
    assert judged(stage, folder).outcome == VALID
    forget(stage)
    more(stage, 2)
    verdict = judged(stage, folder)
    assert (verdict.outcome, verdict.findings) == (VALID, [])
    whole = judged(stage, folder, from_start=True)
    assert whole.outcome == UNKNOWN
    assert "what was before is gone from the log" in whole.reason
    more(stage, 3)
    forget(stage)
    assert judged(stage, folder).outcome == UNKNOWN, "what came after the last verdict was deleted unread"


def test_what_an_auditor_has_compared_is_gone_on_from(stage: Stage, folder: Path) -> None:
    """By the next one, and by a verdict, where retention has removed the beginning and nobody has called `verify`."""
    assert audited(stage, folder).outcome == VALID
    for seed in (2, 3):
        forget(stage)
        more(stage, seed)
        standing = audited(stage, folder)
        assert (standing.outcome, standing.findings) == (VALID, [])
    verdict = judged(stage, folder)
    assert (verdict.outcome, verdict.findings) == (VALID, [])
    assert verdict.proved > 2 * COUNT
    more(stage, 4)
    forget(stage)
    standing = audited(stage, folder)
    assert (standing.outcome, standing.findings) == (UNKNOWN, [])
    assert "what was before is gone from the log" in standing.reason, "what came after was deleted unread"


def test_a_damaged_one_is_left_out_and_the_one_before_is_taken(stage: Stage, folder: Path) -> None:
    first = judged(stage, folder)
    more(stage, 2)
    second = judged(stage, folder)
    assert second.outcome == VALID
    newest = files(folder)[-1]
    content = bytearray(newest.read_bytes())
    content[-20] ^= 1
    newest.write_bytes(content)
    found = judged(stage, folder)
    assert (found.outcome, found.proved) == (VALID, second.proved), "as the second began"
    assert second.proved >= first.counts["records"]
    for path in files(folder):
        path.write_bytes(path.read_bytes()[:-1])
    found = judged(stage, folder)
    assert (found.outcome, found.proved) == (VALID, 0)
    assert len(files(folder)) == 1, "damaged ones are gone"


@pytest.mark.promise("verify-reads-on")
@pytest.mark.long  # 9 s
def test_another_judge_and_another_topic_begin_anew(
    stage: Stage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judged(stage, folder).outcome == VALID
    with monkeypatch.context() as changed:
        changed.setattr("onefold.verify.state.fingerprint", lambda of_what, **more: "another")
        assert judged(stage, shutil.copytree(folder, folder.with_name("fingerprint"))).proved == 0
    assert judged(stage, folder).proved > 0
    other = shutil.copytree(folder, folder.with_name("with a registry"))
    registry = {"schema_registry_url": "http://127.0.0.1:9"}
    for more_settings, proved in ((registry, False), (registry, True), (registry, True), ({}, True)):
        found = judged(stage, other, **more_settings)
        assert (found.outcome, found.proved > 0) == (VALID, proved), "records that need one are dead letters without it"
    assert len(files(other)) == 4, "two of each: none deletes what only another one can go on from"
    again = Stage(stage.client["bootstrap.servers"], stage.dsn, runner.WORKLOAD)
    again.play(runner.generate(5, 3 * COUNT, shape=SHAPE, users=30))  # beyond the offsets that are kept
    found = judged(again, folder)
    assert (found.outcome, found.proved) == (VALID, 0), "topics of the same names are others"


@pytest.mark.promise("verify-reads-on")
def test_what_an_auditor_leaves_of_several_inputs_is_whole(tmp_path: Path) -> None:
    """Their order and the ticks too; what waits in it is taken by the oracle of whoever goes on."""
    work = averages.WORKLOAD
    folder, log = Checkpoints(tmp_path / "judge", work.name), SimulatedLog("cluster")
    for topic in topics_of(work).all:
        log.create(topic, PARTITIONS)
    seen = JudgesLog(log, topics_of(work).all)
    state = begin(work, seen, None, {})
    state.progresses[0], state.read, order = {"transactions": 3}, 1, state.order
    assert order is not None
    take = order.take = lambda record: seen  # as a bound method of the auditor, no other judge has it
    order.feed(ReadRecord("averages.left", 0, 0, b"a", b"{}"))
    log.append("averages.left", b"a", b"{}", partition=0)
    place = ("averages.left", 0)
    assert Proved(folder, work, None, seen).keep(state, {**seen.positions, place: 1}) == ""
    assert order.take is take, "the auditor goes on"

    found = Proved(folder, work, None, seen).find({})
    assert found is not None
    checkpoint, state = found
    assert (checkpoint.positions[place], checkpoint.records, state.progresses) == (1, 1, {0: {"transactions": 3}})
    assert state.order is not None
    assert state.order.take == state.oracle.feed
    assert (state.oracle.changed, state.outputs.heard) == (state.matching.changed, state.matching.wrote)
    state.order.add(ReadRecord("averages.order", 0, 0, None, b'{"version": 1, "runs": [["averages.left", 0, 1]]}'))
    assert sum(state.oracle.expected.counts.as_stored().values()) == 1, "what waited is taken"


UPDATES = "runner.updates"
REPLAYED = "onefold-replays"


@pytest.mark.promise("verify-reads-on")
def test_a_replayed_dead_letter_is_no_new_beginning(tmp_path: Path) -> None:
    """It changed nothing before and changes nothing now; a pipeline with retention has no other beginning to go back to. What was
    no dead letter counts otherwise since it has a receipt.
    """
    work, owner = runner.WORKLOAD, WriterIdentity("", "runner")
    oracle, replays = Oracle(work, PARTITIONS, owner=owner), Replays(owner=owner)
    oracle.withdrawn = replays.withdrawn
    value = json.dumps({"user_id": 1, "distance_meters": 5, "timestamp_utc": 1, "sequence_id": 1, "run_id": 1}).encode()
    place = partition_of("1", PARTITIONS)
    for offset, sent in enumerate([b"junk", value, b"x" * (DEAD_LETTER_BYTES_MAX + 1)]):
        oracle.feed(ReadRecord(UPDATES, place, offset, b"1", sent))
    keys = (f"{number:0{DEAD_LETTER_BYTES_MAX + 1}}" for number in range(100))
    key = next(key for key in keys if partition_of(key, PARTITIONS) == place).encode()
    oracle.feed(ReadRecord(UPDATES, place, 3, key, b"junk"))
    environment = environment_of(work, contracts(work.name))
    positions = {(UPDATES, place): 4}
    store, head = Checkpoints(tmp_path, work.name), HEAD._replace(topics={UPDATES: "id"}, positions=positions)
    assert store.keep(head, SimpleNamespace(oracle=oracle, replays=replays), environment) == ""

    def found(*offsets: int) -> Any:
        receipts = {Source(UPDATES, place, offset): False for offset in offsets}
        return store.holding((HEAD.judge, {UPDATES: "id"}), receipts, positions, positions, environment)

    assert found() is not None
    assert found(7) is not None, "it was not read yet"
    assert found(1) is None, "it was accepted"
    for cut in (2, 3):
        assert found(cut) is None, "whether all of it was put back cannot be known from a dead letter that is cut"
    _, state = found(0)
    assert [one.kind for one in state.replays.findings()] == ["missing replay"]
    dropped = {Source(UPDATES, place, offset): True for offset in (0, 2, 3)}
    checkpoint = store.holding((HEAD.judge, {UPDATES: "id"}), dropped, positions, positions, environment)
    assert checkpoint is not None, "of a dropped one nothing has to be compared"
    assert [*checkpoint[1].replays.findings()] == []
    for offset, (sent, wrong) in enumerate([(b"junk", []), (b"other", ["doubled replay", "changed replay"])]):
        again = [(REPLAYED, f"{UPDATES}/{place}/0".encode()), (PIPELINE_HEADER, b"/runner/id")]
        state.oracle.feed(ReadRecord(UPDATES, place, 4 + offset, b"1", sent, [*again]))
        assert [one.kind for one in state.replays.findings()] == wrong


def test_a_folder_that_others_may_write_to_is_not_used(stage: Stage, folder: Path) -> None:
    assert judged(stage, folder).note == ""
    (folder / "runner").chmod(0o770)
    found = judged(stage, folder)
    assert (found.outcome, found.proved) == (VALID, 0)
    assert "other users may write to" in found.note


def test_the_fingerprint_is_of_model_contracts_and_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = kept.fingerprint(runner.WORKLOAD)
    assert kept.fingerprint(runner.WORKLOAD) == before
    (tmp_path / "verify.py").write_text("# another judge\n", encoding="utf-8")
    monkeypatch.setattr(kept, "_PACKAGE", tmp_path)
    assert kept.fingerprint(runner.WORKLOAD) != before


def test_what_cannot_be_kept_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, "runner")
    problem = store.keep(HEAD, {"model": lambda: None}, {})
    assert problem.startswith("the checkpoint of this verification could not be saved: ")
    assert list((tmp_path / "runner").iterdir()) == []
    (tmp_path / "runner").chmod(0o770)
    assert "other users may write to" in store.keep(HEAD, {}, {})


def test_of_each_judge_the_two_newest_checkpoints_stay(tmp_path: Path) -> None:
    """None deletes what only another one can go on from."""
    store = Checkpoints(tmp_path, "runner")
    heads = [HEAD._replace(judge=judge, made_at=f"{HEAD.made_at}{at}") for judge in ("one", "other") for at in range(3)]
    for head in heads:
        assert store.keep(head, {}, {}) == ""
    assert sorted(head for head, _ in store.newest({})) == sorted([*heads[1:3], *heads[4:]])


def test_a_changelog_whose_beginning_is_gone_is_read_on(tmp_path: Path) -> None:
    """Of it only the last progress counts; of an input what comes next must be there."""
    work = runner.WORKLOAD
    log = SimulatedLog("cluster")
    for topic in topics_of(work).all:
        log.create(topic, PARTITIONS)
    seen = JudgesLog(log, topics_of(work).all)
    proved = Proved(Checkpoints(tmp_path / "judge", work.name), work, None, seen)
    assert proved.keep(begin(work, seen, None, {}), seen.positions) == ""
    log.truncate("runner.changelog", 0, 1)
    assert proved.find({}) is not None
    log.truncate(UPDATES, 0, 1)
    assert proved.find({}) is None


def test_functions_without_a_name_are_taken_from_the_reader(tmp_path: Path) -> None:
    """A model in a few lines is often made of them."""
    store, function = Checkpoints(tmp_path, "runner"), lambda: 7
    assert store.keep(HEAD, {"model": [function]}, {"f": function}) == ""
    other = lambda: 8  # noqa: E731
    ((head, found),) = store.newest({"f": other})
    assert head == HEAD
    assert found.state() == {"model": [other]}
    ((_, found),) = store.newest({})
    assert found.state() is None, "a reader that lacks it begins anew"


@pytest.mark.promise("verify-reads-on")
@pytest.mark.parametrize("domain", DOMAINS)
def test_every_model_goes_on_where_it_was(domain: ModuleType, tmp_path: Path) -> None:
    """Half of the input, kept, and the other half: the same as all of it."""
    given: dict[str, Any] = {"alone": True} if domain.__name__.endswith("sheets") else {}
    records = log_of(list(domain.generate(3, 4_000, shape=StreamShape(hostile=0.03, keyless=0.02), **given)))
    work = domain.WORKLOAD

    def oracle(replays: Replays) -> Oracle:
        made = Oracle(work, PARTITIONS)
        made.withdrawn = replays.withdrawn
        return made

    whole, half, replays = oracle(Replays()), None, Replays()
    half = oracle(replays)
    for record in records:
        whole.feed(record)
    for record in records[:2_000]:
        half.feed(record)
    half.settled()
    environment = environment_of(work, contracts(work.name))
    assert Checkpoints(tmp_path, work.name).keep(HEAD, {"oracle": half, "replays": replays}, environment) == ""
    ((_, found),) = Checkpoints(tmp_path, work.name).newest(environment)
    state = found.state()
    assert state["oracle"].withdrawn.__self__ is state["replays"]
    for record in records[2_000:]:
        state["oracle"].feed(record)

    expected, got = whole.settled(), state["oracle"].settled()
    for table in work.tables:
        assert got.model.rows[table.name] == expected.model.rows[table.name]
    for name in ("counts", "dead", "uncopied", "fates"):
        assert getattr(got, name) == getattr(expected, name)
    assert list(got.fed.findings()) == list(expected.fed.findings())
    (path,) = (tmp_path / work.name).iterdir()
    assert path.stem == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(path.read_bytes().partition(b"\n")[2])
