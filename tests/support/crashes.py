"""A crash at every hit of a step, each in a run of its own."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from onefold.testing import TopologyDriver

Driver = TypeVar("Driver", bound=TopologyDriver)

# More than any of these runs takes of one step: who gets there goes round in circles.
_HITS_MAX = 300


def crashed_at_every_hit(
    step: str, make: Callable[[], Driver], feed: Callable[[Driver], object]
) -> Iterator[tuple[str, Driver]]:
    """Where a run was crashed, and what has become of it; as often as the step is taken."""
    for hit in range(1, _HITS_MAX):
        driver = make()
        driver.crash_at(step, hit)
        feed(driver)
        if not driver.restarts:
            assert hit > 1, f"step {step} was never reached"
            return
        yield f"crash at {step}, hit {hit}", driver
    pytest.fail(f"step {step} never ran out of hits")
