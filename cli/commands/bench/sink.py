"""`onefold bench sink`: output records landed a second."""

from __future__ import annotations

from onefold.cli.commands.bench.common import PARTITIONS, AsJson, Events, Partitions, Seed, run


def command(
    events: Events = 500_000, partitions: Partitions = PARTITIONS, seed: Seed = 1, as_json: AsJson = False
) -> None:
    """Output records landed a second, from topics that a processor filled beforehand.

    Example: onefold bench sink --events 200000
    """
    from onefold.bench import sink

    run("sink", partitions, as_json, lambda place: sink.measure(place, events, seed))
