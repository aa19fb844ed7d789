"""A crash at every hit of a step, each in a separate run."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from onefold.testing import TopologyDriver

Driver = TypeVar("Driver", bound=TopologyDriver)

# More than the hits of any test, so that an endless loop fails.
_HITS_MAX = 300


def crashed_at_every_hit(
    step: str, make: Callable[[], Driver], feed: Callable[[Driver], object]
) -> Iterator[tuple[str, Driver]]:
    """Yield the place of the crash, and the driver afterwards, for every hit of the step."""
    for hit in range(1, _HITS_MAX):
        driver = make()
        driver.crash_at(step, hit)
        feed(driver)
        if not driver.restarts:
            assert hit > 1, f"step {step} was never reached"
            return
        yield f"crash at {step}, hit {hit}", driver
    pytest.fail(f"step {step} never ran out of hits")
