"""Run the subprocesses of several test cases ahead on all cores, while the current case checks a result."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Case = TypeVar("Case")
Result = TypeVar("Result")


@contextmanager
def ahead(work: Callable[[Case], Result], cases: Iterable[Case]) -> Iterator[Callable[[Case], Result]]:
    """Start `work(case)` for all cases, and yield a function that waits for the result of a case, or raises the exception of
    `work`.

    At the end, cases not yet started are cancelled. `work` runs in a thread beside pytest, so `work` must not
    - read os.environ: pytest writes the name of the running test there, and an iteration may fail;
    - call `ast` or parse requirements: with Python 3.11 two threads in `ast.parse` may raise SystemError.
    """
    pool = ThreadPoolExecutor(os.cpu_count())
    begun = {case: pool.submit(work, case) for case in cases}
    try:
        yield lambda case: begun[case].result()
    finally:
        pool.shutdown(cancel_futures=True)
