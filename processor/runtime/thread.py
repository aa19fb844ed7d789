"""A thread that drives a generator, and waits between two steps for the seconds that the generator yields."""

import threading
from collections.abc import Callable, Iterator


class LifeThread:
    """A thread that drives `life`.

    Args:
        life: the generator of seconds to wait; the thread ends with the generator.
        name: of the thread.
    """

    def __init__(self, life: Callable[[], Iterator[float]], name: str) -> None:
        self._life = life
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._drive, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """End the current wait, and skip all later waits."""
        self._awake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread. Returns False on a timeout."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _drive(self) -> None:
        for wait_s in self._life():
            if wait_s:
                self._awake.wait(wait_s)
