"""A start that stands back: Linux gives the process little time while others want it, and its full share afterwards.

A replica that starts again is in no hurry, for another one decides meanwhile; but what it takes from the cores is missed there.
A lower nice value could not be taken back without privileges. The nice value of the session's scheduling group can, by whoever
may write /proc/self/autogroup (sched(7)). Each service has a session of its own, and this stands back behind the other ones.
Where a kernel has no such groups, or the container's own groups are what counts, it changes nothing.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

GROUP = Path("/proc/self/autogroup")
# A tenth of the share of one that has not stepped back.
NICE = 10
# Not longer, whatever it does: when all replicas start at once, and something else fills the cores, nobody decides meanwhile.
MOST_S = 5.0
# The kernel takes one such change in a tenth of a second, from all.
AGAIN_S = 0.1


class Behind:
    """Steps back at once, where that is possible: behind other sessions, so only who leads one may.

    Args:
        group: the file of the session's scheduling group.
        most_s: when it steps forward by itself.
    """

    def __init__(self, group: Path = GROUP, most_s: float = MOST_S) -> None:
        self._group = group
        self._most_s = most_s
        self._level = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="behind", daemon=True)
        try:
            group.write_text(str(NICE))
        except OSError:
            return
        self._thread.start()

    def step_forward(self) -> None:
        """Take the full share again. May be called again and again."""
        self._level.set()

    def _wait(self) -> None:
        self._level.wait(self._most_s)
        pause = threading.Event()
        while True:
            try:
                self._group.write_text("0")
            except BlockingIOError:
                pause.wait(AGAIN_S)
            except OSError:
                return
            else:
                return


def leads_its_session() -> bool:
    """Whether the session is this process's own, and not that of a shell with others in it."""
    return os.getsid(0) == os.getpid()
