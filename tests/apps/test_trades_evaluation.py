"""The evaluation of trades counts rightly. What it measures is not tested: it depends on the machine."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from onefold.cli import main
from onefold.error_codes import Code
from onefold.exit_codes import OK, USAGE
from onefold.operate.positions import stable_ends
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import connect
from onefold.trades import evaluate, evaluation
from onefold.trades.evaluation import Plan, Run, _by_window, throughput
from onefold.trades.feeder import Feeder
from onefold.trades.report import latencies, write
from onefold.workloads.trade_feed import TOPIC, Feed, Mix
from tests.support.coded import code_of
from tests.support.migrated import migrate_all
from tests.support.waiting import eventually

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def _landing(at_s: float, way_s: float, count: int) -> tuple[datetime, datetime, int]:
    return MOMENT + timedelta(seconds=at_s), MOMENT + timedelta(seconds=at_s - way_s), count


def test_a_backlog_is_there_all_at_once(
    fresh_domain: Callable[..., Topology], client: dict[str, str], database: str, checkout: Path
) -> None:
    """Nobody can read a message of it before, and every one right after."""
    fresh_domain("trades")
    migrate_all(database, checkout / "sql")
    admin = connect(client)

    def readable() -> int:
        return sum(stable_ends(admin, [TOPIC]).values())

    def asked() -> bool:
        with suppress(KafkaException):
            return readable() == 0
        return False

    eventually(asked, 10, "the new topic's partitions have leaders")
    feeder = Feeder(client, database, Feed(1, 500))
    for _ in range(5):  # of looks that do not wait for the markers more than half find too few
        before = readable()
        feeder.hold(100)
        assert readable() == before
        feeder.release()
        assert readable() >= before + 100


def test_the_trades_report_counts_every_message() -> None:
    """A mean weighs each message, not each batch; what was made before the beginning is not late but early."""
    landings = [_landing(0.5, 0.25, 300), _landing(0.9, 0.5, 100), _landing(2.5, 2.0, 40), _landing(2.5, 9.0, 7)]
    began = MOMENT.timestamp()
    assert latencies(landings, began) == [(1, 0.3125, 0.5), (3, 2.0, 2.0)]
    assert throughput(landings, began) == [(1, 400.0), (2, 200.0), (3, 149.0)]
    assert _by_window(landings, began) == [149]


def test_the_rolling_mean_is_told_at_the_end_of_every_window() -> None:
    landings = [_landing(second + 0.5, second, count) for second, count in ((0, 400), (19, 200), (20, 100), (24, 60))]
    assert _by_window(landings, MOMENT.timestamp()) == [30, 18]
    assert _by_window(landings[:2], MOMENT.timestamp()) == [30]


def test_the_trades_report_is_one_page_that_needs_no_network(tmp_path: Path) -> None:
    plan = Plan(1000, 10, Mix(), failures=True, kills=False, seed=1)
    run = Run(
        plan, {"verify": "<valid>", "lost": 0, "rolling": [1000, 2]}, [_landing(0.5, 0.25, 300)], MOMENT.timestamp()
    )
    write(tmp_path / "report.html", [run], {"memory": "1 GiB"})
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "&lt;valid&gt;" in page
    assert "1,000, 2</td>" in page
    assert not re.search(r"(src|href)=.?https?://", page)


@pytest.mark.parametrize(
    ("cores", "paced", "partitions"), [(2, False, 4), (2, True, 2), (64, True, 4), (None, True, 1)]
)
def test_small_batches_have_no_more_partitions_than_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, paced: bool, partitions: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert evaluate._partitions(paced=paced) == partitions


@pytest.mark.parametrize("verb", ["trades evaluate", "bench trades"])
def test_a_run_without_and_one_with_failures_are_on_stacks_of_their_own(
    verb: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks: list[tuple[str, int]] = []

    @contextmanager
    def stack(pipeline: str, partitions: int) -> Iterator[tuple[None, dict[str, str]]]:
        stacks.append((pipeline, partitions))
        yield None, {"memory": "1 GiB"}

    def measure(place: None, plan: Plan) -> Run:
        return Run(plan, {"rate": plan.rate, "failures": plan.failures, "kills": plan.kills})

    monkeypatch.setattr(evaluate, "fresh_stack", stack)
    monkeypatch.setattr(evaluation, "measure", measure)
    report = tmp_path / "report.html"
    assert main.run([*verb.split(), "--kills", "--report", str(report), "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert told["machine"] == {"memory": "1 GiB"}
    assert [(run["failures"], run["kills"], run["rate"]) for run in told["runs"]] == [
        (False, False, 50_000),
        (True, True, 50_000),
    ]
    assert stacks == [("trades", 4)] * 2
    assert "With failures" in report.read_text(encoding="utf-8")
    assert main.run([*verb.split(), "--paced", "--report", str(tmp_path)]) == USAGE
    assert code_of(capsys.readouterr().err, f"the report {tmp_path} cannot be written") is Code.FILE_UNUSABLE
    assert len(stacks) == 3, "a paced run is one run"
