"""The scheduler of a running sink: threads of the operating system."""

import threading
from collections.abc import Callable


class Threads:
    """Every `start` is a thread. Whoever waits looks at its condition after each `changed`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def start(self, name: str, run: Callable[[], None]) -> None:
        """A daemon: a process that has waited long enough for its end must not wait for this."""
        threading.Thread(target=run, name=name, daemon=True).start()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Block the calling thread until `condition` holds."""
        with self._changed:
            self._changed.wait_for(condition)

    def changed(self) -> None:
        """Wake whoever waits."""
        with self._changed:
            self._changed.notify_all()
