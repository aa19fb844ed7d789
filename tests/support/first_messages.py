"""Messages of the example pipelines, generated once for all tests that change them."""

from functools import cache

from onefold.workloads import campaigns, runner, trades
from onefold.workloads.shaping import StreamShape


@cache
def first_messages() -> list[tuple[str, int, bytes]]:
    """Topic, seed and first message of each of ten generators."""
    return [
        (domain.TOPIC, seed, next(domain.generate(seed, 9, shape=StreamShape(duplicates=0))).value)
        for domain in (runner, campaigns, trades)
        for seed in range(10)
    ]
