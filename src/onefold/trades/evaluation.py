"""The seed's evaluation: trade messages at a steady rate, with and without failures, from the producer to PostgreSQL.

A feed produces the messages and keeps their sums. The processor processes them, and the sink reduces and commits the
deltas. The sink records latencies with each batch (`trades.landed`): the number of newly visible messages per tenth of a
second of their timestamps. At the end `verify` recomputes all results from the topics, and the evaluation compares the
feed's sums with the table's sums.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from onefold import postgres
from onefold.bench.cpu import CpuSampler
from onefold.bench.environment import BenchmarkEnvironment
from onefold.trades.feeder import Feeder
from onefold.verify.verifier import verify
from onefold.workloads.trade_feed import TOPIC, Feed, Mix

PIPELINE = "trades"
#: The seed's shares: percent of state, map and reduce batches.
FAILURES = {"ONEFOLD_FAIL_STATE_PCT": "1", "ONEFOLD_FAIL_MAP_PCT": "2", "ONEFOLD_FAIL_REDUCE_PCT": "2"}

# Warm-up batches are written before the measurement, because Spark compiles its queries in the first batches. The batches are
# just large enough for the code path of the measured batches. With fewer batches the JVM has compiled less.
_WARM_UP_MESSAGES, _WARM_UP_TIMES = 130_000, 6
# Small batches have a different code path, so a paced run also warms up at its rate, for as long as the JVM compiles
# (cli/commands/bench/latency.py). The maximum rate avoids a backlog.
_WARM_UP_PACED_S, _WARM_UP_RATE_MAX = 90, 20_000
_DRAIN_S = 1800.0
_ASK_EVERY_S = 0.25
# A lag query costs CPU time. The end of the run comes from the sink's records, so a rare query suffices.
_LAG_ASK_EVERY_S = 1.0
# The time-out of the verification of ten million messages, with a margin for a slow machine.
_JUDGE_S = 1800.0

#: The seconds of the rolling mean in the seed's graphs.
WINDOW_S = 20

#: The time of the commit, the time of the messages, and their number.
Landing = tuple[datetime, datetime, int]


@dataclass(frozen=True)
class Plan:
    """The parameters of a run.

    Attributes:
        rate: Messages a second; 0 for a backlog, visible all at once and drained as fast as possible.
        kills: Whether the run kills (SIGKILL) and restarts the processor and the sink once each.
    """

    messages: int
    rate: int
    mix: Mix
    failures: bool
    kills: bool
    seed: int


@dataclass
class Run:
    """The measurements of a run. `began` is in seconds since 1970, and `landings` are in order of the commits."""

    plan: Plan
    figures: dict[str, Any] = field(default_factory=dict)
    landings: list[Landing] = field(default_factory=list)
    began: float = 0.0


def measure(environment: BenchmarkEnvironment, plan: Plan) -> Run:
    """Measure a run on a fresh environment. Raises RuntimeError if the run does not drain."""
    if plan.failures:
        environment.environment.update(FAILURES)
    paced = min(plan.rate, _WARM_UP_RATE_MAX)
    warm_up = _WARM_UP_MESSAGES * _WARM_UP_TIMES + paced * _WARM_UP_PACED_S
    feed = Feed(plan.seed, plan.messages + warm_up, plan.mix, now=time.time)
    feeder = Feeder(environment.client, environment.dsn, feed)
    children = _Children(environment)
    children.start("processor", "sink")
    for _ in range(_WARM_UP_TIMES):
        environment.say("warming up")
        feeder.send(_WARM_UP_MESSAGES)
        _drained(environment)
    if paced:
        feeder.start(paced * _WARM_UP_PACED_S, paced)
        environment.wait(lambda: not feeder.running(), 2 * _WARM_UP_PACED_S, "the warm-up is sent")
        feeder.stop()
        _drained(environment)
    run = Run(plan)
    _produce_and_land(environment, plan, feeder, children, run)
    children.stop("processor", "sink")
    _judge(environment, feed, run)
    return run


def _produce_and_land(
    environment: BenchmarkEnvironment, plan: Plan, feeder: Feeder, children: "_Children", run: Run
) -> None:
    deltas_before = environment.landed(PIPELINE)
    if not plan.rate:
        environment.say(f"filling {TOPIC} with {plan.messages:,} messages that are not visible yet")
        feeder.hold(plan.messages)
    environment.say("measuring")
    cpu = CpuSampler(children.pids())
    run.began = time.time()
    if plan.rate:
        feeder.start(plan.messages, plan.rate)
    else:
        feeder.release()
    while feeder.running():
        _maybe_kill(plan, feeder, children)
        time.sleep(_ASK_EVERY_S)
    sent_at = time.time()
    _drained(environment)
    cpu.stop()
    feeder.stop()
    with postgres.connect(environment.dsn, "onefold trades", autocommit=False) as connection:
        run.landings = connection.execute(
            "SELECT landed_at, sent_at, messages FROM trades.landed WHERE landed_at > to_timestamp(%s) ORDER BY 1, 2",
            [run.began],
        ).fetchall()
        injected: dict[str, int] = dict(connection.execute("SELECT stage, failures FROM onefold.injected").fetchall())
    # The commit time comes from the sink, because the lag query notices the end up to a second later.
    ended = max(landed.timestamp() for landed, _, _ in run.landings)
    seconds = ended - run.began
    run.figures = {
        "messages": plan.messages,
        "messages_per_second_asked": plan.rate or None,
        "seconds_until_all_was_landed": round(seconds, 2),
        "messages_per_second": round(plan.messages / seconds),
        f"messages_per_second_rolling_{WINDOW_S}_s": _by_window(run.landings, run.began),
        "seconds_after_the_last_was_sent": round(ended - sent_at, 2) if plan.rate else None,
        "deltas_landed": environment.landed(PIPELINE) - deltas_before,
        "batches_landed": len({landed for landed, _, _ in run.landings}),
        **_latencies(run.landings, run.began if plan.rate else ended),
        # The CPU time of a killed process is unknown.
        **{f"{name}_cpu_us_per_message": round(cpu.seconds(name, run.began, ended) / plan.messages * 1e6, 1)
           for name in children.pids() if not children.killed},
        **{f"failures_injected_{stage}": injected.get(stage, 0) for stage in ("state", "map", "reduce")},
        "killed": children.killed,
    }  # fmt: skip


def _judge(environment: BenchmarkEnvironment, feed: Feed, run: Run) -> None:
    environment.say("verifying")
    verdict = verify(PIPELINE, client=environment.client, dsn=environment.dsn, timeout_s=_JUDGE_S)
    kinds = verdict.kinds()
    with postgres.connect(environment.dsn, "onefold trades", autocommit=False) as connection:
        held = connection.execute(
            "SELECT risk_type, region, trade_desk, (value * 1000000)::numeric(38, 0), trades FROM trades.risk"
            " WHERE num_nulls(risk_type, region, trade_desk) = 0 AND trades > 0"
        ).fetchall()
    theirs = {row[:3]: (int(row[3]), row[4]) for row in held}
    truth = {leaf: told for leaf, told in feed.truth().items() if told[1]}
    run.figures |= {
        "verify": verdict.outcome,
        "verify_s": verdict.seconds,
        "lost": sum(count for kind, count in kinds.items() if kind.startswith("missing")),
        "duplicated": sum(count for kind, count in kinds.items() if kind.startswith(("doubled", "extra", "phantom"))),
        "otherwise_wrong": sum(kinds.values()) - sum(c for k, c in kinds.items() if k.startswith(_COUNTED)),
        "leaves_that_differ_from_the_producers_sums": sum(
            truth.get(leaf) != theirs.get(leaf) for leaf in truth.keys() | theirs.keys()
        ),
    }


_COUNTED = ("missing", "doubled", "extra", "phantom")


def throughput(landings: Sequence[Landing], began: float) -> list[tuple[int, float]]:
    """Pairs of the second since the beginning and the rolling mean of trades written a second.

    The mean covers the last `WINDOW_S` seconds, or fewer at the beginning.
    """
    landed: dict[int, int] = defaultdict(int)
    for at, _, count in landings:
        landed[int(at.timestamp() - began)] += count
    means = []
    for second in range(max(landed, default=-1) + 1):
        window = range(max(0, second - WINDOW_S + 1), second + 1)
        means.append((second + 1, sum(landed[passed] for passed in window) / len(window)))
    return means


def _by_window(landings: Sequence[Landing], began: float) -> list[int]:
    """The rolling mean at the end of every window, and at the end of the run."""
    means = throughput(landings, began)
    return [round(mean) for second, mean in means if second % WINDOW_S == 0 or second == len(means)]


def _latencies(landings: list[Landing], began: float) -> dict[str, float | None]:
    """The latencies in seconds of the messages made after `began`, with the sink's resolution of a tenth of a second."""
    weighted = sorted(
        ((landed - made).total_seconds(), count) for landed, made, count in landings if made.timestamp() >= began
    )
    total = sum(count for _, count in weighted)
    if not total:
        return {}
    names = {"p50": 0.5, "p99": 0.99}
    figures: dict[str, float | None] = {"latency_mean": round(sum(way * n for way, n in weighted) / total, 3)}
    for name, share in names.items():
        figures[f"latency_{name}"] = round(_percentile(weighted, share * total), 3)
    return {**figures, "latency_max": round(weighted[-1][0], 3)}


def _percentile(weighted: list[tuple[float, int]], up_to: float) -> float:
    seen = 0
    for way, count in weighted:
        seen += count
        if seen >= up_to:
            return way
    return weighted[-1][0]


def _maybe_kill(plan: Plan, feeder: Feeder, children: "_Children") -> None:
    """Kill the processor after a third of the messages, and the sink after two thirds."""
    if (
        plan.kills
        and children.killed < len(_KILLED_AT)
        and feeder.sent >= _KILLED_AT[children.killed][1] * plan.messages
    ):
        children.kill(_KILLED_AT[children.killed][0])


_KILLED_AT = (("processor", 1 / 3), ("sink", 2 / 3))


def _drained(environment: BenchmarkEnvironment) -> None:
    """Wait until the processor has processed all messages and the sink has written all output records."""
    written = "all output records are written to PostgreSQL"
    environment.wait(lambda: environment.drained(PIPELINE), _DRAIN_S, written, _LAG_ASK_EVERY_S)


class _Children:
    """A processor and a sink, and their restarts."""

    def __init__(self, environment: BenchmarkEnvironment) -> None:
        self._environment = environment
        self._running: dict[str, Any] = {}
        self.killed = 0

    def start(self, *names: str) -> None:
        for name in names:
            self._running[name] = self._begin(name)

    def stop(self, *names: str) -> None:
        for name in names:
            self._running[name].stop()

    def kill(self, name: str) -> None:
        """Kill the process (SIGKILL) and start a replacement."""
        self.killed += 1
        self._running[name].kill()
        self._running[name] = self._begin(name)

    def pids(self) -> dict[str, list[int]]:
        found = {name: [child.pid or 0] for name, child in self._running.items()}
        running = self._environment.infrastructure
        return found | {"broker": [running.kafka.pid or 0], "postgres": [running.postgres.pid or 0]}

    def _begin(self, name: str) -> Any:
        verb = {"processor": ("process", "--processes", "1"), "sink": ("sink",)}[name]
        return self._environment.start(name, *verb, PIPELINE)
