"""Which process decides which tasks, where each could decide all of them.

Whoever wins a decision goes on to win, and nothing keeps one process from winning all tasks: it computes everything, with the
one core that Python gives it, and the others wait. So who decides two tasks more than another process gives one away, by a note
that leaves the next decision to that one. As courtesy it says only when to propose, and has no part in who wins.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from onefold.processor.core.decision_log import Note

# A task is given away by who has decided it for so long: then who has died since it last told anything is not thought to live.
HELD_S = 3.0
# Replicas tell how they are once a second, while there are decisions.
HEARD_S = 2.0
# What is given to somebody who does not take it waits for a courtesy. So it is tried now and then, and only with who is level:
# notes are some decisions old when they are read.
GIVES_EVERY_S, LEVEL = 5.0, 10
# And only with who has been level with the task for so long: who has just begun restores other tasks yet, and decides slowly
# beside that.
LEVEL_FOR_S = 3.0


class Sharing:
    """Of one process, in which each task has a replica: what they have seen of the others.

    Args:
        name: of the process's replicas.
        clock: monotonic seconds, the replicas'.
        lock: held while it looks or notes something. None: no threads share it.
    """

    def __init__(
        self,
        name: str,
        clock: Callable[[], float],
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._name = name
        self._clock = clock
        self._lock = lock or nullcontext()
        self._deciders: dict[int, tuple[str, float]] = {}  # by task, and since when
        self._decided_at: dict[int, float] = {}
        # By task and name, since when it is level, and when it was heard last.
        self._level: dict[tuple[int, str], tuple[float, float]] = {}
        self._gives_at = 0.0

    def decided(self, task: int, name: str) -> None:
        """A task was decided by that replica."""
        now = self._clock()
        with self._lock:
            self._decided_at[task] = now
            if self._deciders.get(task, ("", now))[0] != name:
                self._deciders[task] = name, now

    def hears(self, note: Note, version: int) -> bool:
        """What a replica has told of a task that is at that version. Whether it leaves the next decision to this one."""
        told = note.body.get("replica")
        known = told.get("version") if isinstance(told, dict) else None
        if note.proposer != self._name and isinstance(known, int) and version - known <= LEVEL:
            now = self._clock()
            with self._lock:
                at = note.task, note.proposer
                since, heard = self._level.get(at, (now, now))
                self._level[at] = (since if now - heard < HEARD_S else now), now
        return note.body.get("left") == {"version": version, "to": self._name}

    def gives(self, task: int, version: int) -> Mapping[str, Any] | None:
        """A note that leaves the next decision of the task, which is at that version, to another replica; None: to nobody."""
        now = self._clock()
        with self._lock:
            decider, decides_since = self._deciders.get(task, ("", now))
            others = [
                name
                for (level_task, name), (since, heard) in self._level.items()
                if level_task == task and now - heard < HEARD_S and now - since >= LEVEL_FOR_S
            ]
            if decider != self._name or now - decides_since < HELD_S or now < self._gives_at or not others:
                return None
            # What stands still costs nobody anything.
            busy = Counter(self._deciders[task][0] for task, at in self._decided_at.items() if now - at < HELD_S)
            other = min(others, key=lambda name: (busy[name], name))
            if busy[self._name] - busy[other] < 2:
                return None
            self._gives_at = now + GIVES_EVERY_S
            return {"left": {"version": version, "to": other}}
