"""`onefold bench sink`: output records written a second."""

from __future__ import annotations

from onefold.cli.commands.bench.common import PARTITIONS, AsJson, Events, Partitions, Pipeline, Seed, run


def command(
    events: Events = 500_000,
    pipeline: Pipeline = "",
    partitions: Partitions = PARTITIONS,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Measure the output records that the sink writes a second, from topics that a processor filled before.

    Example: onefold bench sink --events 200000
    """
    from onefold.bench import sink

    run("sink", pipeline, partitions, as_json, lambda place, workload: sink.measure(place, workload, events, seed))
