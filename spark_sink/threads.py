"""The scheduler of a running sink, with threads of the operating system."""

import threading
from collections.abc import Callable


class Threads:
    """Run each `start` in a new thread. Each call of `changed` makes waiting threads evaluate their conditions."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Start a daemon thread, because the thread must not delay the exit of the process beyond the stop deadline."""
        threading.Thread(target=run, name=name, daemon=True).start()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Block the calling thread until `condition` holds."""
        with self._changed:
            self._changed.wait_for(condition)

    def changed(self) -> None:
        """Notify all waiting threads."""
        with self._changed:
            self._changed.notify_all()
