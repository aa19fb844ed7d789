"""How many dead letters each pipeline has that nobody has replayed or dropped. Kafka's ends of topics are asked for now and then,
all in one question; dead letters are read only where something has come since, and seldom where they are many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.dashboard.failures import by_reason
from onefold.dashboard.standing import Dead
from onefold.operate import pipelines, positions
from onefold.operate.dead_letters.letters import DeadLetters, Wanted
from onefold.operate.positions import Ranges
from onefold.operate.reading import Place
from onefold.pipelines import Faulty
from onefold.processor import loading

if TYPE_CHECKING:
    from onefold.processor.core.topology import Topology

# Each is up to 64 KiB, and those of a bad hour come faster than they are read: of more than so many offsets it is said that there
# are at most so many, and they are counted now and then, as they may all have been put back.
READ_MAX = 1_000
SELDOM_S = 300.0
# At most some hundred MB, which the page's figures of Kafka wait for; of more it is never known how many are put back.
SELDOM_MAX = 10_000


class DeadCounts:
    """Keeps what was counted, and between which offsets. Blocks while it asks: for a thread."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._settings = settings
        self._clock = clock
        self._counted: dict[str, tuple[Ranges, Dead]] = {}
        self._read_at: dict[str, float] = {}  # where they are many

    def look(self) -> Mapping[str, Dead]:
        """By pipeline. One whose topics are missing, or cannot be read, is left out; all are as before when Kafka is silent."""
        topologies = dict(_topologies())
        wanted = [topic for one in topologies.values() for topic in (*one.dead.values(), one.replays)]
        ranges = positions.readable(wanted, self._settings)
        if ranges is not None:
            for name, topology in topologies.items():
                self._look(name, topology, ranges)
        return {name: dead for name, (_, dead) in self._counted.items()}

    def _look(self, name: str, topology: Topology, ranges: Ranges) -> None:
        topics = {*topology.dead.values(), topology.replays}
        mine = {place: span for place, span in ranges.items() if place[0] in topics}
        before = self._counted.get(name)
        if before is not None and before[0] == mine and before[1].exact:
            return
        dead = {place: span for place, span in mine.items() if place[0] != topology.replays}
        if not dead:
            self._counted.pop(name, None)
            return
        found = self._count(name, sum(end - start for start, end in dead.values()))
        if found is not None:
            self._counted[name] = mine, found

    def _count(self, name: str, offsets: int) -> Dead | None:
        """offsets: records, markers and what was aborted."""
        if not offsets:
            return Dead(0)
        if offsets > READ_MAX and not self._may_read(name, offsets):
            return Dead(offsets, exact=False)
        try:
            letters = DeadLetters(name, self._settings).select(Wanted(open=True))
            found = [
                (
                    letter.reason or "no reason is given",
                    datetime.fromtimestamp(letter.at_ms / 1000, UTC),
                    *_place(letter.place),
                )
                for letter in letters
            ]
        except UserError:
            return None
        if offsets > READ_MAX:
            self._read_at[name] = self._clock()
        return Dead(len(found), failures=by_reason(found, datetime.now(UTC)))

    def _may_read(self, name: str, offsets: int) -> bool:
        """Whether so many are counted now."""
        before = self._read_at.get(name)
        return offsets <= SELDOM_MAX and (before is None or self._clock() - before >= SELDOM_S)


def _place(place: Place) -> tuple[str, str]:
    return place.topic, f"{place.partition}/{place.offset}"


def _topologies() -> Mapping[str, Topology]:
    found = {}
    for name, pipeline in pipelines.found().pipelines.items():
        try:
            found[name] = loading.load_topology(pipeline)
        except Faulty:  # `check` says why
            continue
    return found
