"""When each partition last moved: through the processor, by the ends of its changelog; into PostgreSQL, by the ledger."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from onefold.operate import positions
from onefold.operate.positions import Place
from onefold.operate.settings import Settings
from onefold.processor import loading
from onefold.proof import workloads

SAMPLE_S = 0.2  # between two samples; what is measured is seconds
CALL_S = 2  # a server that is away is asked again; psycopg knows no shorter patience


class Way:
    """The moments at which each partition was seen to have moved on, on one way."""

    def __init__(self) -> None:
        self._at: dict[Place, int] = {}
        self._moved: dict[Place, list[float]] = {}

    def record(self, offsets: Mapping[Place, int], now: float) -> None:
        """Note where the partitions are now."""
        for place, offset in offsets.items():
            before = self._at.get(place)
            self._at[place] = offset
            moments = self._moved.setdefault(place, [])
            if before is not None and offset > before:
                moments.append(now)

    def moving(self, within_s: float, now: float) -> bool:
        """Whether every partition has moved lately."""
        return bool(self._moved) and all(moments and now - moments[-1] <= within_s for moments in self._moved.values())

    def longest_stall_s(self, since: float, until: float) -> float:
        """The longest time, within these moments, in which some partition did not move."""
        longest = 0.0 if self._moved else until - since
        for moments in self._moved.values():
            inside = [since, *(moment for moment in moments if since < moment < until), until]
            longest = max(longest, *(after - before for before, after in itertools.pairwise(inside)))
        return longest


class ProgressMonitor:
    """Samples a domain's progress in the background, as a context."""

    def __init__(self, domain: str, settings: Settings) -> None:
        topology = loading.topology_of(domain)
        outputs = set(workloads.workload(domain).outputs)
        self._ways = {"processor": Way(), "sink": Way()}
        self._stop = threading.Event()
        self._admin = AdminClient(
            {**settings.client(), "reconnect.backoff.max.ms": "1000", "log_level": "0"}, logger=_silent()
        )
        ask: dict[str, Callable[[], dict[Place, int]]] = {
            "processor": lambda: positions.stable_ends(self._admin, [topology.changelog], CALL_S),
            "sink": lambda: _landed(settings.postgres(), domain, outputs),
        }
        # A thread each: one server that is away must not hide what the other one does.
        self._threads = [threading.Thread(target=self._run, args=(way, ask[way]), daemon=True) for way in ask]

    def __enter__(self) -> ProgressMonitor:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * CALL_S)

    def moving(self, within_s: float) -> bool:
        """Whether every partition has moved lately, on both ways."""
        now = time.monotonic()
        return all(way.moving(within_s, now) for way in self._ways.values())

    def longest_stall_s(self, since: float, until: float) -> dict[str, float]:
        """By way, the longest time in which some partition did not move."""
        return {name: round(way.longest_stall_s(since, until), 1) for name, way in self._ways.items()}

    def _run(self, name: str, ask: Callable[[], dict[Place, int]]) -> None:
        while not self._stop.wait(SAMPLE_S):
            with suppress(KafkaException, psycopg.Error):
                self._ways[name].record(ask(), time.monotonic())


def _landed(dsn: str, sink: str, topics: set[str]) -> dict[Place, int]:
    return {place: offset for place, offset in positions.landed(dsn, sink, CALL_S).items() if place[0] in topics}


def _silent() -> logging.Logger:
    """Servers that are away are what this is for."""
    logger = logging.getLogger("onefold.progress-monitor")
    logger.disabled = True
    return logger
