"""From a stream of good inputs to one as it arrives in life: with repeats, late, keyless and hostile ones."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from onefold.workloads.hostile import hostile

# Inputs are moved about within blocks of this size: large enough that edges do not matter, small enough to stay cheap.
_BLOCK = 8192


class Input(NamedTuple):
    """A record to produce. A None key lets the producer choose any partition."""

    topic: str
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class Shape:
    """How the stream differs from a well-behaved one. Shares are parts of one.

    Attributes:
        duplicates: inputs that are sent a second time.
        altered: of those, the ones that say something else the second time (where the domain has such repeats).
        late: inputs that arrive after up to `window` later ones.
        keyless: inputs without a key, which land in any partition.
        hostile: inputs added that are broken, or unusual and yet good (see `hostile`).
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
    """Exactly `count` inputs. `second_time` alters a repeat."""
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
    # The fraction of a record is drawn, or small blocks would never have any.
    return rng.choices(range(size), k=int(size * share + rng.random())) if share else []
