"""One run of a workload under a nemesis: load flows, the fault comes and goes, everything drains, and the judge decides.

Three questions are answered. Are the numbers right? `verify.verifier` decides, which shares no code with what it judges. Were
they right all the time? The readers decide, who ask for the pipeline's invariants while it happens. Did work go on soon? The
longest stall of a partition decides: in the processor (no transaction was committed) and in the sink (no batch was).
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
WARM_MAX_S = 60.0  # and until every partition progresses: a sink that has just started compiles its queries first
AFTER_S = 10.0  # of load after the fault, at least
CALM_S = 2.0  # when every partition has progressed within so long, work goes on
GIVE_UP_S = 30.0  # beyond the bound: then it will not go on in time any more, and the verdict gives the reason
DRAIN_S = 120.0
ASK_EVERY_S = 0.1

Say = Callable[[str], None]

_PRINTED = {"stall_while_held_s": "held_still", "stall_s": "stood_still"}


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        events: how many were sent.
        stalls_while_held: by stage, the longest stall of a partition in seconds while the fault was held.
        stalls: the same from the moment on from which work should go on.
        bounds: by stage, the longest stall in seconds that is in time.
        looks: how often readers asked for the invariants.
        broken: what they found.
        verdict: `verify.verdict.VALID` or another outcome, for this `reason`.
        seconds: of the whole run.
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
        """Whether no stall was longer than its bound."""
        return all(self.stalls[stage] <= bound for stage, bound in self.bounds.items())

    @property
    def passed(self) -> bool:
        """Whether every number is right, and was so in every snapshot, and work went on in time."""
        return self.verdict == VALID and not self.broken and self.in_time

    def as_data(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {**asdict(self), "in_time": self.in_time, "passed": self.passed}


def run(
    stack: Stack, settings: Settings, workload: str, nemesis: Nemesis, *, seed: int, seconds: float = AFTER_S,
    say: Say = lambda text: None,
) -> Outcome:  # fmt: skip
    """One run. Whatever happens, the fault is healed in the end.

    Args:
        stack: what the fault is done to.
        settings: with the servers of the stack, and how much later than on a quiet machine is in time.
        workload: the domain under load.
        nemesis: the fault.
        seed: of the events.
        seconds: of load after the fault, at least.
        say: called with what is going on.

    Raises:
        UserError: something cannot be done to the stack.
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
    return Outcome(
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
    """The nemesis as this pipeline has to bear it: one of several replicas may be missing at no time."""
    replicated = settings.replicas_of(pipelines.found()[workload]) > 1
    if (
        replicated
        and nemesis.one_of == PROCESSOR
        and (nemesis.prepare is not nothing or stack.instances(PROCESSOR) > 1)
    ):
        return nemesis.among_replicas(*BOUNDS_OF_REPLICAS)
    return nemesis


def bounds_of(nemesis: Nemesis, settings: Settings) -> dict[str, float]:
    """By stage the seconds that are in time."""
    bounds = {"processor": nemesis.processor_s, "sink": nemesis.sink_s}
    return {stage: settings.chaos_patience * seconds for stage, seconds in bounds.items()}


def inflict(stack: Stack, nemesis: Nemesis, say: Say) -> tuple[float, float]:
    """Injects, holds and heals. Returns the moment of the injection, and that from which on work should go on."""
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
        # A nemesis that has added some leaves one; of replicas that would be one too few.
        if stack.instances(PROCESSOR) < before:
            stack.scale(PROCESSOR, before)
    return injected, since


def _wait(reached: Callable[[], bool], at_least_s: float, at_most_s: float) -> None:
    """Until it is so, within two limits. Who needs to know asks again."""
    least = time.monotonic() + at_least_s
    until(lambda: time.monotonic() >= least and reached(), at_most_s, ASK_EVERY_S)
