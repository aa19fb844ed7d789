"""Table of faults: four kinds for each of four services, and special ones for some services.

Verification models and faults are independent, and tests run every pair.
"""

from __future__ import annotations

from collections.abc import Iterator

from onefold.chaos.nemeses import Act, Nemesis, Stack, nothing

KAFKA, PROCESSOR, SINK, POSTGRES = "kafka", "processor", "spark_sink", "postgres"

# Longer than the transaction timeout of the processor and the idle-in-transaction timeout of the sink (15 s each), and than the
# group's session timeout (6 s). A service paused for this long has lost its transactions and tasks, without notice.
PAUSE_S = 20.0
# Longer than every delivery and session timeout that detects an unresponsive peer (10 s).
CUT_S = 12.0
# Long enough that two instances work at the same time.
TOGETHER_S = 10.0

# Longest accepted stall of a partition in seconds, by the service with the fault: (processor, sink).
#
#   processor: the group detects a missing member after 6 s; takeover and restore take the rest.
#   sink: a new JVM with Spark must start, and the processor must not be affected.
#   kafka: all services stall until the broker is back, and then reconnect one after the other.
BOUNDS = {KAFKA: (30.0, 35.0), PROCESSOR: (15.0, 20.0), SINK: (5.0, 30.0), POSTGRES: (5.0, 20.0)}
SERVICES = tuple(BOUNDS)
# Bounds for a fault in one of several replicas, which does not wait for the group. Peers detect a missing publisher within 0.6
# s with shorter transactions (processor.runtime.takeover). The rest is the CPU time that a starting process takes from them.
BOUNDS_OF_REPLICAS = (5.0, 5.0)

CONTROL = Nemesis(
    "none", "nothing happens: separates what is broken from what breaks under faults", nothing, hold_s=5.0
)


def nemeses() -> dict[str, Nemesis]:
    """All faults by name, the baseline first."""
    return {nemesis.name: nemesis for nemesis in (CONTROL, *_of_every_service(), *_of_some())}


def _of_every_service() -> Iterator[Nemesis]:
    for name in SERVICES:
        yield from _of_service(name)


def _of_service(name: str) -> Iterator[Nemesis]:
    processor_s, sink_s = BOUNDS[name]
    yield Nemesis(
        f"kill-{name}",
        f"kill -9 of {name}; the stack starts it again",
        lambda stack: stack.kill(name),
        processor_s=processor_s,
        sink_s=sink_s,
        one_of=name,
    )
    yield Nemesis(
        f"restart-{name}",
        f"{name} is asked to end, and starts again",
        lambda stack: stack.restart(name),
        processor_s=processor_s,
        sink_s=sink_s,
        one_of=name,
    )
    yield Nemesis(
        f"pause-{name}",
        f"{name} is paused (SIGSTOP) for {PAUSE_S:.0f} s, longer than transactions and sessions last, and then resumed",
        lambda stack: stack.pause(name),
        lambda stack: stack.resume(name),
        processor_s=processor_s,
        sink_s=sink_s,
        hold_s=PAUSE_S,
        held=True,
        one_of=name,
    )
    yield Nemesis(
        f"cut-{name}",
        f"every packet from and to {name} is dropped for {CUT_S:.0f} s",
        lambda stack: stack.cut(name),
        lambda stack: stack.mend(name),
        processor_s=processor_s,
        sink_s=sink_s,
        hold_s=CUT_S,
        held=True,
        one_of=name,
    )


def _of_some() -> Iterator[Nemesis]:
    yield Nemesis(
        "takeover",
        "one of two processors is killed for good; the other takes its partitions",
        lambda stack: stack.leave_dead(PROCESSOR),
        _in_turn(lambda stack: stack.revive(PROCESSOR), lambda stack: stack.scale(PROCESSOR, 1)),
        *BOUNDS[PROCESSOR],
        prepare=lambda stack: stack.scale(PROCESSOR, 2),
        hold_s=BOUNDS[PROCESSOR][0],
        one_of=PROCESSOR,
    )
    yield Nemesis(
        "two-processors",
        "a second processor joins, works beside the first, and leaves",
        lambda stack: stack.scale(PROCESSOR, 2),
        lambda stack: stack.scale(PROCESSOR, 1),
        *BOUNDS[PROCESSOR],
        hold_s=TOGETHER_S,
    )
    yield Nemesis(
        "two-sinks",
        "a second sink writes the same topics at once; then the first is killed, and the second continues alone",
        _in_turn(lambda stack: stack.scale(SINK, 2), lambda stack: stack.leave_dead(SINK)),
        _in_turn(lambda stack: stack.revive(SINK), lambda stack: stack.scale(SINK, 1)),
        *BOUNDS[SINK],
        hold_s=TOGETHER_S,
    )
    yield Nemesis(
        "forget-sink",
        "Spark's checkpoint and everything else in the sink's volume is deleted under its feet",
        lambda stack: stack.forget(SINK),
        *(nothing, *BOUNDS[SINK]),
    )
    yield Nemesis(
        "scale-processor",
        "three processors, then two, then one",
        _in_turn(lambda stack: stack.scale(PROCESSOR, 3), lambda stack: stack.scale(PROCESSOR, 2)),
        lambda stack: stack.scale(PROCESSOR, 1),
        *BOUNDS[PROCESSOR],
    )


def _in_turn(*acts: Act) -> Act:
    def act(stack: Stack) -> None:
        for one in acts:
            one(stack)

    return act
