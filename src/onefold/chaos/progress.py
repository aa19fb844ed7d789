"""Times of the last progress of each partition: in the processor by the end of the changelog, in PostgreSQL by the ledger."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import psycopg
from confluent_kafka import KafkaException

from onefold import kafka_client
from onefold.config.settings import Settings
from onefold.operate import offsets
from onefold.operate.offsets import Place
from onefold.processor import loading
from onefold.verify.loading import workload

ASK_EVERY_S = 0.2  # between two requests; stalls are measured in seconds
CALL_S = 2  # a request to an absent server is repeated; psycopg has no shorter timeout


class StageTimes:
    """Times of progress of each partition in one stage, the processor or the sink."""

    def __init__(self) -> None:
        self._at: dict[Place, int] = {}
        self._progressed: dict[Place, list[float]] = {}

    def note(self, offsets: Mapping[Place, int], now: float, ends: Mapping[Place, int] | None = None) -> None:
        """Record the present offsets of the partitions.

        Args:
            offsets: offset of each partition.
            now: seconds of the monotonic clock.
            ends: end of each partition, read before `offsets`. A partition at its end has no work, and does not stall.
        """
        ends = ends or {}
        for place, offset in offsets.items():
            before = self._at.get(place)
            self._at[place] = offset
            moments = self._progressed.setdefault(place, [])
            if before is not None and (offset > before or offset >= ends.get(place, offset + 1)):
                moments.append(now)

    def progressing(self, within_s: float, now: float) -> bool:
        """Whether every partition has progressed within this time."""
        return bool(self._progressed) and all(
            moments and now - moments[-1] <= within_s for moments in self._progressed.values()
        )

    def longest_stall(self, since: float, until: float) -> float:
        """Longest time in seconds, between these times, without progress of some partition."""
        longest = 0.0 if self._progressed else until - since
        for moments in self._progressed.values():
            inside = [since, *(moment for moment in moments if since < moment < until), until]
            longest = max(longest, *(after - before for before, after in itertools.pairwise(inside)))
        return longest


class ProgressMonitor:
    """Monitor of a pipeline's progress in the background, as a context manager."""

    def __init__(self, domain: str, settings: Settings) -> None:
        topology = loading.topology_of(domain)
        outputs = set(workload(domain).outputs)
        self._stages = {"processor": StageTimes(), "sink": StageTimes()}
        self._stop = threading.Event()
        self._admin = kafka_client.admin({**settings.client(), "reconnect.backoff.max.ms": "1000"})
        ask: dict[str, Callable[[], tuple[dict[Place, int], dict[Place, int]]]] = {
            "processor": lambda: (offsets.stable_ends(self._admin, [topology.changelog], CALL_S), {}),
            "sink": lambda: self._landed(settings.postgres(), domain, outputs),
        }
        # One thread per server, so that an absent server does not hide the progress on the other.
        self._threads = [threading.Thread(target=self._run, args=(stage, ask[stage]), daemon=True) for stage in ask]

    def __enter__(self) -> ProgressMonitor:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * CALL_S)

    def progressing(self, within_s: float) -> bool:
        """Whether every partition has progressed within this time, in both stages."""
        now = time.monotonic()
        return all(stage.progressing(within_s, now) for stage in self._stages.values())

    def stalls(self, since: float, until: float) -> dict[str, float]:
        """Longest time in seconds without progress of some partition, by stage."""
        return {name: round(stage.longest_stall(since, until), 1) for name, stage in self._stages.items()}

    def _run(self, name: str, ask: Callable[[], tuple[dict[Place, int], dict[Place, int]]]) -> None:
        while not self._stop.wait(ASK_EVERY_S):
            with suppress(KafkaException, psycopg.Error):
                offsets, ends = ask()
                self._stages[name].note(offsets, time.monotonic(), ends)

    def _landed(self, dsn: str, domain: str, topics: set[str]) -> tuple[dict[Place, int], dict[Place, int]]:
        """Offsets in the ledger, and ends of the topics. The ends are read first, so that later records do not count as a
        backlog."""
        ends = offsets.stable_ends(self._admin, topics, CALL_S)
        landed = offsets.landed(dsn, domain, CALL_S)
        return {place: offset for place, offset in landed.items() if place[0] in topics}, ends
