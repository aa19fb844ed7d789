"""Run a pipeline under load with one fault, drain, and verify.

A run answers three questions:

- Are the tables correct? `verify.verifier` decides, which shares no code with the verified components.
- Were the tables correct at all times? The readers decide, who query the pipeline's invariants during the run.
- Did work continue in time? The longest stall of a partition decides, without a commit in the processor or in the sink.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from onefold.chaos.judging import judge
from onefold.chaos.load import Load
from onefold.chaos.nemeses import Nemesis, Stack, nothing
from onefold.chaos.nemeses.table import BOUNDS_OF_REPLICAS, PROCESSOR
from onefold.chaos.progress import ProgressMonitor
from onefold.chaos.readers import Readers
from onefold.config.settings import Settings
from onefold.operate import pipelines
from onefold.verify.verdict import VALID
from onefold.waiting import until

WARM_S = 3.0  # of load before the fault
WARM_MAX_S = 60.0  # until every partition progresses, because a starting sink first compiles queries
AFTER_S = 10.0  # of load after the fault, at least
CALM_S = 2.0  # work has resumed when every partition has progressed within this time
GIVE_UP_S = 30.0  # beyond the bound: later progress is late anyway, and the verdict gives the reason
DRAIN_S = 120.0
ASK_EVERY_S = 0.1

Say = Callable[[str], None]

_PRINTED = {"stall_while_held_s": "held_still", "stall_s": "stood_still"}


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of a run.

    Attributes:
        events: number of events sent.
        stalls_while_held: by stage, the longest stall of a partition in seconds during the fault.
        stalls: by stage, the longest stall from the time when work should continue.
        bounds: by stage, the longest accepted stall in seconds.
        looks: number of the readers' queries of all invariants.
        broken: findings of the readers.
        verdict: `verify.verdict.VALID` or another outcome, with its `reason`.
        seconds: duration of the run.
    """

    workload: str
    nemesis: str
    seed: int
    events: int
    stalls_while_held: dict[str, float]
    stalls: dict[str, float]
    bounds: dict[str, float]
    looks: int
    broken: list[str]
    verdict: str
    reason: str
    seconds: float

    @property
    def in_time(self) -> bool:
        """Whether no stall exceeded its bound."""
        return all(self.stalls[stage] <= bound for stage, bound in self.bounds.items())

    @property
    def passed(self) -> bool:
        """Whether the tables are correct, no snapshot broke an invariant, and work continued in time."""
        return self.verdict == VALID and not self.broken and self.in_time

    def as_data(self) -> dict[str, Any]:
        """All attributes as plain data."""
        return {**asdict(self), "in_time": self.in_time, "passed": self.passed}


def run(
    stack: Stack, settings: Settings, workload: str, nemesis: Nemesis, *, seed: int, seconds: float = AFTER_S,
    say: Say = lambda text: None,
) -> RunOutcome:  # fmt: skip
    """Run once. The fault is healed at the end in every case.

    Args:
        stack: the stack with the fault.
        settings: servers of the stack, and the factor for the bounds on a slow machine.
        workload: pipeline under load.
        nemesis: the fault.
        seed: of the generated events.
        seconds: of load after the fault, at least.
        say: called with progress messages.

    Raises:
        UserError: an operation on the stack failed.
    """
    began = time.monotonic()
    nemesis = as_it_hits(stack, settings, workload, nemesis)
    bounds = bounds_of(nemesis, settings)
    most = GIVE_UP_S + max(bounds.values())
    with Readers(workload, settings) as readers:
        with ProgressMonitor(workload, settings) as monitor, Load(workload, settings, seed) as load:
            say(f"{workload} under {nemesis.name}: load begins (seed {seed})")
            _wait(lambda: monitor.progressing(CALM_S), WARM_S, WARM_MAX_S)
            injected, since = inflict(stack, nemesis, say)
            _wait(lambda: monitor.progressing(CALM_S), seconds, most)
            until = time.monotonic()
            stalls_while_held, stalls = monitor.stalls(injected, since), monitor.stalls(since, until)
        say(f"{workload} under {nemesis.name}: {load.sent:,} events were sent; draining and verifying")
        verdict = judge(stack, workload, settings, DRAIN_S)
    return RunOutcome(
        workload,
        nemesis.name,
        seed,
        load.sent,
        stalls_while_held,
        stalls,
        bounds,
        readers.looks,
        readers.said,
        verdict.outcome,
        verdict.reason,
        round(time.monotonic() - began, 1),
    )


def as_it_hits(stack: Stack, settings: Settings, workload: str, nemesis: Nemesis) -> Nemesis:
    """Adapt the bounds of a fault to the pipeline: with several replicas, one replica may fail without a wait for the group."""
    replicated = settings.replicas_of(pipelines.found()[workload]) > 1
    if (
        replicated
        and nemesis.one_of == PROCESSOR
        and (nemesis.prepare is not nothing or stack.instances(PROCESSOR) > 1)
    ):
        return nemesis.among_replicas(*BOUNDS_OF_REPLICAS)
    return nemesis


def bounds_of(nemesis: Nemesis, settings: Settings) -> dict[str, float]:
    """Longest accepted stalls in seconds, by stage."""
    bounds = {"processor": nemesis.processor_s, "sink": nemesis.sink_s}
    return {stage: settings.chaos_patience * seconds for stage, seconds in bounds.items()}


def inflict(stack: Stack, nemesis: Nemesis, say: Say) -> tuple[float, float]:
    """Inject, hold and heal. Return the time of the injection, and the time from which work should continue."""
    before = stack.instances(PROCESSOR)
    injected = since = time.monotonic()
    try:
        nemesis.prepare(stack)
        injected = since = time.monotonic()
        say(f"fault: {nemesis.description}")
        nemesis.inject(stack)
        _wait(lambda: True, nemesis.hold_s, nemesis.hold_s)
    finally:
        if nemesis.held:
            since = time.monotonic()
        nemesis.heal(stack)
        # A fault that scales may leave one instance, which is too few for replicas.
        if stack.instances(PROCESSOR) < before:
            stack.scale(PROCESSOR, before)
    return injected, since


def _wait(reached: Callable[[], bool], at_least_s: float, at_most_s: float) -> None:
    """Wait until `reached`, or until the upper limit, and at least for the lower limit. The caller checks the result."""
    least = time.monotonic() + at_least_s
    until(lambda: time.monotonic() >= least and reached(), at_most_s, ASK_EVERY_S)
