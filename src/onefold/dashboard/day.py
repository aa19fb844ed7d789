"""How each pipeline was in the last day, a point a minute, kept in a file that outlives the dashboard.

What is asked for it, is asked once a minute, also while nobody looks. A file that cannot be written, as on a full disk, costs
nothing but what was before a restart.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from onefold.config import private_files

MINUTE_S = 60.0
MINUTES = 24 * 60
# Two points that are further apart have something between them that nobody saw.
_GAP_S = 2.5 * MINUTE_S
#: Of a point of the charts: a page that is sent each second holds no more than it shows.
SLOT_S = 600
# So many lines the file may have before what is too old is taken out of it.
_LINES_MAX = 2 * MINUTES


class Minute(NamedTuple):
    """Of one pipeline at one moment; None: unknown.

    Attributes:
        landed: the sum of the offsets that it lands next.
        waiting: events that are still to be folded or landed.
        oldest_s: how old the oldest of them is, in seconds.
    """

    landed: int | None
    waiting: int | None
    oldest_s: float | None


class Slot(NamedTuple):
    """Ten minutes of one pipeline; None: nobody saw them.

    Attributes:
        until: unix seconds.
        rate: offsets landed a second.
        oldest_s: of the worst minute.
    """

    until: int
    rate: float | None
    oldest_s: float | None


class Day:
    """The last day of all pipelines.

    Args:
        file: where it is kept, a JSON array a line: unix seconds, and by pipeline a `Minute`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._points: deque[tuple[float, Mapping[str, Minute]]] = deque(maxlen=MINUTES)
        self._lines = 0
        for at, minutes in _read(file):
            self._lines += 1
            if at > time.time() - MINUTES * MINUTE_S and (not self._points or at > self._points[-1][0]):
                self._points.append((at, minutes))

    def add(self, at: float, minutes: Mapping[str, Minute]) -> None:
        """How all pipelines are at a time, in unix seconds; never before the last one."""
        self._points.append((at, minutes))
        while self._points[0][0] < at - MINUTES * MINUTE_S:
            self._points.popleft()
        with suppress(OSError):
            if self._lines >= _LINES_MAX:
                private_files.write(self._file, "".join(map(_line, self._points)))
                self._lines = len(self._points)
                return
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(
                os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, private_files.FILE), "w", encoding="utf-8"
            ) as out:
                out.write(_line((at, minutes)))
            self._lines += 1

    def slots(self, name: str) -> list[Slot]:
        """Of a pipeline, the oldest first, without a hole in time; [] before two points are there."""
        found: dict[int, list[tuple[float | None, float | None]]] = {}
        for (before_at, before), (at, now) in pairwise(self._points):
            if name in now and at - before_at <= _GAP_S:
                rate = _rate(before.get(name), now[name], at - before_at)
                found.setdefault(int(at // SLOT_S), []).append((rate, now[name].oldest_s))
        if not found:
            return []
        return [_slot(number, found.get(number, [])) for number in range(min(found), max(found) + 1)]


def _slot(number: int, points: list[tuple[float | None, float | None]]) -> Slot:
    rates = [rate for rate, _ in points if rate is not None]
    ages = [age for _, age in points if age is not None]
    return Slot((number + 1) * SLOT_S, math.fsum(rates) / len(rates) if rates else None, max(ages, default=None))


def _rate(before: Minute | None, now: Minute, seconds: float) -> float | None:
    """Never below nothing: a pipeline that was started over begins again at 0."""
    if before is None or before.landed is None or now.landed is None:
        return None
    return max(0.0, (now.landed - before.landed) / seconds)


def _line(point: tuple[float, Mapping[str, Minute]]) -> str:
    return f"{json.dumps([round(point[0]), point[1]], separators=(',', ':'))}\n"


def _read(file: Path) -> Iterator[tuple[float, dict[str, Minute]]]:
    """What can be read of it: a line may be cut off, or somebody else's."""
    lines: Iterable[str] = ()
    with suppress(OSError, UnicodeDecodeError):
        lines = file.read_text(encoding="utf-8").splitlines()
    for line in lines:
        with suppress(ValueError, TypeError, AttributeError):
            at, minutes = json.loads(line)
            yield float(at), {str(name): Minute(*minute) for name, minute in minutes.items()}
