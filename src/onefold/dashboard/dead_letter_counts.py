"""Count the open dead letters of each pipeline: neither replayed nor dropped.

One request at intervals asks Kafka for the end offsets of all topics. Dead letters are read only for pipelines with new
offsets, and seldom where there are many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.dashboard.failures import by_reason
from onefold.dashboard.pipeline_status import Dead
from onefold.operate import offsets, pipelines
from onefold.operate.dead_letters.letters import DeadLetters, Wanted
from onefold.operate.offsets import Ranges
from onefold.operate.record_reader import RecordPlace
from onefold.pipelines import InvalidDeclaration
from onefold.processor import loading

if TYPE_CHECKING:
    from onefold.processor.core.topology import Topology

# A dead letter has up to 64 KiB, and in an incident more arrive than can be read. Above READ_MAX offsets, the page shows the
# number of offsets as an upper bound. A count every SELDOM_S finds out whether the letters were replayed.
READ_MAX = 1_000
SELDOM_S = 300.0
# This many letters are several hundred MB, and the page's Kafka figures wait for them. Above, the upper bound stays.
SELDOM_MAX = 10_000


class DeadCounts:
    """Cache of the counts, with the offsets of each. Its calls block: use a thread."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._settings = settings
        self._clock = clock
        self._counted: dict[str, tuple[Ranges, Dead]] = {}
        self._read_at: dict[str, float] = {}  # only for counts above READ_MAX

    def look(self) -> Mapping[str, Dead]:
        """Count by pipeline, without pipelines whose topics are missing. Without an answer from Kafka, the last count stays."""
        topologies = dict(_topologies())
        wanted = [topic for one in topologies.values() for topic in (*one.dead.values(), one.replays)]
        ranges = offsets.readable(wanted, self._settings)
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
        """`offsets`: number of offsets, with transaction markers and aborted records."""
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
        """Whether a count of this many letters is due."""
        before = self._read_at.get(name)
        return offsets <= SELDOM_MAX and (before is None or self._clock() - before >= SELDOM_S)


def _place(place: RecordPlace) -> tuple[str, str]:
    return place.topic, f"{place.partition}/{place.offset}"


def _topologies() -> Mapping[str, Topology]:
    found = {}
    for name, pipeline in pipelines.found().pipelines.items():
        try:
            found[name] = loading.load_topology(pipeline)
        except InvalidDeclaration:  # `onefold check` reports the reason
            continue
    return found
