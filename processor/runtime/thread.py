"""A thread that drives a life: a generator that says how long to wait before it goes on."""

import threading
from collections.abc import Callable, Iterator


class LifeThread:
    """Drives what `life` gives.

    Args:
        life: gives seconds to wait, one after the other; the thread ends when it does.
        name: of the thread.
    """

    def __init__(self, life: Callable[[], Iterator[float]], name: str) -> None:
        self._life = life
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._drive, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Wait no more, now and later."""
        self._awake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; False when it has not ended in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _drive(self) -> None:
        for wait_s in self._life():
            if wait_s:
                self._awake.wait(wait_s)
