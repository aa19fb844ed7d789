"""How often Python looks for cycles of objects while somebody judges."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: What a judge makes, it keeps, or it is in no cycle: to look for cycles as often as Python does takes a fifth of its time, and
#: half of an auditor's.
SELDOM = (100_000, 50, 100)


@contextmanager
def seldom() -> Iterator[None]:
    """Seldom, until the end."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
