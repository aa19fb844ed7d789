"""What the stages of landing are told to have taken, by a clock of the test's own."""

from itertools import count
from typing import Any

from onefold.spark_sink.landing.stage_timer import Stages
from onefold.spark_sink.landing.steps import STEPS
from onefold.telemetry import STAGE_S, Telemetry


class Told(Telemetry):
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, name: str, amount: float = 1.0, **labels: Any) -> None:
        assert (name, labels["domain"]) == (STAGE_S, "made_up")
        self.seconds[labels["stage"]] = self.seconds.get(labels["stage"], 0.0) + amount


def test_each_stage_is_told_once_and_what_a_step_takes_belongs_to_none() -> None:
    ticks = count()  # each look at the clock is a second later
    told, taken = Told(), []

    def step(name: str) -> None:
        taken.append(name)
        for _ in range(100):  # a failpoint that takes its time
            next(ticks)

    stages = Stages(told, "made_up", lambda: float(next(ticks)))
    with stages.reading():
        pass
    timed = stages.timed(step)
    for name in STEPS:
        timed(name)
    assert taken == list(STEPS)
    assert told.seconds == {"read": 1, "claim": 1, "copy": 1, "merge": 1, "commit": 1}
