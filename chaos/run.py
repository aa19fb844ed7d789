"""One run of a workload under a nemesis: load flows, the fault comes and goes, everything drains, and the judge decides.

Two questions are answered. Are the numbers right? That says `proof.verify`, which shares no code with what it judges. Did work
go on soon? That says the longest time for which a partition stood still, on its way through the processor (no transaction was
committed) and on its way into PostgreSQL (no batch was).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from onefold.chaos.load import Load
from onefold.chaos.nemeses import Nemesis, Stack
from onefold.chaos.progress import Meter
from onefold.operate.settings import Settings
from onefold.proof.verdict import VALID
from onefold.proof.verify import verify

WARM_S = 3.0  # of load before the fault
WARM_MAX_S = 60.0  # and until every partition moves: a sink that has just started compiles its queries first
AFTER_S = 10.0  # of load after the fault, at least
CALM_S = 2.0  # when every partition moved within so long, work goes on
GIVE_UP_S = 30.0  # beyond the bound: then it will not go on in time any more, and the rest tells why
DRAIN_S = 120.0
LOOK_S = 0.1

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What came of a run. Seconds everywhere: the longest time that a partition stood still, by way, while the fault was held
    and from the moment on from which work should go on.
    """

    workload: str
    nemesis: str
    seed: int
    events: int
    held_still: dict[str, float]
    stood_still: dict[str, float]
    bounds: dict[str, float]
    verdict: str
    reason: str
    seconds: float

    @property
    def in_time(self) -> bool:
        """Whether no partition stood still for longer than its bound."""
        return all(self.stood_still[way] <= bound for way, bound in self.bounds.items())

    @property
    def right(self) -> bool:
        """Whether every number is right, and work went on in time."""
        return self.verdict == VALID and self.in_time

    def as_data(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {**asdict(self), "in_time": self.in_time, "right": self.right}


def run(
    stack: Stack, settings: Settings, workload: str, nemesis: Nemesis, *, seed: int, seconds: float = AFTER_S,
    say: Say = lambda text: None,
) -> Outcome:  # fmt: skip
    """One run. Whatever happens, the fault is healed in the end.

    settings: with the servers of the stack. seconds: of load after the fault, at least. Raises UserError when something can
    not be done to the stack.
    """
    began = time.monotonic()
    with Meter(workload, settings) as meter, Load(workload, settings, seed) as load:
        say(f"{workload} under {nemesis.name}: load begins (seed {seed})")
        _wait(lambda: meter.moving(CALM_S), WARM_S, WARM_MAX_S)
        injected, since = _inflict(stack, nemesis, say)
        most = GIVE_UP_S + max(nemesis.processor_s, nemesis.sink_s)
        _wait(lambda: meter.moving(CALM_S), seconds, most)
        until = time.monotonic()
        held_still, stood_still = meter.stood_still(injected, since), meter.stood_still(since, until)
    say(f"{workload} under {nemesis.name}: {load.sent:,} events were sent; draining and verifying")
    verdict = verify(workload, client=settings.client(), dsn=settings.postgres(), timeout_s=DRAIN_S)
    return Outcome(
        workload,
        nemesis.name,
        seed,
        load.sent,
        held_still,
        stood_still,
        {"processor": nemesis.processor_s, "sink": nemesis.sink_s},
        verdict.outcome,
        verdict.reason,
        round(time.monotonic() - began, 1),
    )


def _inflict(stack: Stack, nemesis: Nemesis, say: Say) -> tuple[float, float]:
    """Injects, holds and heals. Returns the moment of the injection, and that from which on work should go on."""
    injected = since = time.monotonic()
    try:
        nemesis.prepare(stack)
        injected = since = time.monotonic()
        say(f"fault: {nemesis.says}")
        nemesis.inject(stack)
        _wait(lambda: True, nemesis.hold_s, nemesis.hold_s)
    finally:
        if nemesis.held:
            since = time.monotonic()
        nemesis.heal(stack)
    return injected, since


def _wait(reached: Callable[[], bool], at_least_s: float, at_most_s: float) -> None:
    """Until it is so, within two limits. Who needs to know asks again."""
    began, pause = time.monotonic(), threading.Event()
    while (passed := time.monotonic() - began) < at_most_s and (passed < at_least_s or not reached()):
        pause.wait(LOOK_S)
