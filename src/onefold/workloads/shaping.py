"""Disturbance of a stream of good inputs: repeated, late, keyless and hostile inputs, as in production."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from onefold.workloads.hostile import hostile

# The block size for reordering: large compared to `Shape.window`, and small in memory.
_BLOCK = 8192


class Input(NamedTuple):
    """A record to produce. For the key None, the producer may choose any partition."""

    topic: str
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class Shape:
    """The disturbances of a stream. Shares are between 0 and 1.

    Attributes:
        duplicates: The share of inputs sent a second time.
        altered: The share of duplicates with different content the second time, if the pipeline has altered repeats.
        late: The share of inputs sent after up to `window` later inputs.
        keyless: The share of inputs without a key, in any partition.
        hostile: The share of added inputs that are broken, or unusual but valid (see `hostile`).
    """

    duplicates: float = 0.03
    altered: float = 0.2
    late: float = 0.02
    window: int = 200
    keyless: float = 0.0
    hostile: float = 0.0


def shaped(
    rng: random.Random,
    count: int,
    inputs: Iterator[Input],
    shape: Shape,
    second_time: Callable[[Input], Input] = lambda once: once,
) -> Iterator[Input]:
    """Yield `count` inputs, or fewer if `inputs` ends. `second_time` alters a repeat."""
    extra = 1 + shape.duplicates + shape.hostile
    while count > 0:
        block = list(islice(inputs, max(1, int(min(count, _BLOCK) / extra))))
        if not block:
            return
        arrived = _disturbed(rng, block, shape, second_time)[:count]
        count -= len(arrived)
        yield from arrived


def _disturbed(
    rng: random.Random, block: list[Input], shape: Shape, second_time: Callable[[Input], Input]
) -> list[Input]:
    size, window = len(block), shape.window
    moments: list[float] = list(range(size))
    for place in _some(rng, size, shape.late):
        moments[place] += rng.random() * window
    for place in _some(rng, size, shape.keyless):
        block[place] = block[place]._replace(key=None)
    for place in _some(rng, size, shape.duplicates):
        block.append(second_time(block[place]) if rng.random() < shape.altered else block[place])
        moments.append(place + rng.random() * window)
    for place in _some(rng, size, shape.hostile):
        block.append(block[place]._replace(value=hostile(rng, block[place].topic, block[place].value or b"")))
        moments.append(place + rng.random())
    return [block[place] for place in sorted(range(len(block)), key=moments.__getitem__)]


def _some(rng: random.Random, size: int, share: float) -> list[int]:
    # A random number rounds the fraction of a record up or down, because small blocks would otherwise never get a record.
    return rng.choices(range(size), k=int(size * share + rng.random())) if share else []
