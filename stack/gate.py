"""What a sink that has started ahead of its time waits for: a task of the stack, and its turn."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from onefold.operate import state

STANDS_BY = "warm standby: another sink writes, and this one takes over when that sink exits"


class Gate:
    """Asked whether a sink may begin to land.

    A turn is a lock that the operating system drops when its holder ends, however that happens. It decides who lands and not
    whether it is right: two sinks at once land nothing twice.

    Args:
        home: of the stack.
        after: the name of a service of the stack that has to have been ready; "" for none.
        turn: one of the sinks with this word has its turn at a time; "" for all.
    """

    def __init__(self, home: Path, after: str = "", turn: str = "") -> None:
        self._home = home
        self._after = after
        self._lock = home / "run" / f"sink-{turn}.turn" if turn else None
        self._held: IO[str] | None = None  # as long as it is open, the turn is ours

    def __call__(self) -> tuple[str, str] | None:
        """The state and the detail of a status while it has to wait; None from when it may begin, for as long as it lives."""
        if self._after and not self._is_done():
            return "starting", f"waiting for {self._after}"
        self._after = ""
        if self._lock is not None and not self._is_ours(self._lock):
            return "running", STANDS_BY
        self._lock = None
        return None

    def _is_done(self) -> bool:
        return bool(state.read(self._home).get("services", {}).get(self._after, {}).get("was_ready"))

    def _is_ours(self, lock: Path) -> bool:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._held = file
        return True
