"""Subprocesses of several test cases, on all cores: while one case looks at its result, the next ones are under way."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Case = TypeVar("Case")
Result = TypeVar("Result")


@contextmanager
def ahead(work: Callable[[Case], Result], cases: Iterable[Case]) -> Iterator[Callable[[Case], Result]]:
    """Begins `work(case)` for all cases, and gives what waits for the result of one, or raises what it raised.

    What nobody waited for by the end is not begun any more. `work` runs in a thread beside pytest, so it must not
    - read os.environ: pytest writes the name of the running test into it, and a reader that goes through it then may fail;
    - call `ast` or parse requirements, which does: with Python 3.11 two threads in `ast.parse` may raise SystemError.
    """
    pool = ThreadPoolExecutor(os.cpu_count())
    begun = {case: pool.submit(work, case) for case in cases}
    try:
        yield lambda case: begun[case].result()
    finally:
        pool.shutdown(cancel_futures=True)
