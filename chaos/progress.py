"""When each partition last moved: through the processor, by the ends of its changelog; into PostgreSQL, by the ledger."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import psycopg
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.operate.settings import Settings
from onefold.processor import loading
from onefold.proof import workloads

LOOK_S = 0.2  # between two looks; what is measured is seconds
CALL_SECONDS = 2  # a server that is away is asked again; psycopg knows no shorter patience

Place = tuple[str, int]


class Way:
    """The moments at which each partition was seen to have moved on, on one way."""

    def __init__(self) -> None:
        self._at: dict[Place, int] = {}
        self._moved: dict[Place, list[float]] = {}

    def look(self, offsets: Mapping[Place, int], now: float) -> None:
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

    def stood_still(self, since: float, until: float) -> float:
        """The longest time, within these moments, in which some partition did not move."""
        longest = 0.0 if self._moved else until - since
        for moments in self._moved.values():
            inside = [since, *(moment for moment in moments if since < moment < until), until]
            longest = max(longest, *(after - before for before, after in itertools.pairwise(inside)))
        return longest


class Meter:
    """Looks at a domain's progress in the background, as a context."""

    def __init__(self, domain: str, settings: Settings) -> None:
        topology = loading.topology_of(domain)
        outputs = set(workloads.workload(domain).outputs)
        self._ways = {"processor": Way(), "sink": Way()}
        self._stop = threading.Event()
        self._admin = AdminClient(
            {**settings.client(), "reconnect.backoff.max.ms": "1000", "log_level": "0"}, logger=_silent()
        )
        ask: dict[str, Callable[[], dict[Place, int]]] = {
            "processor": lambda: _ends(self._admin, topology.changelog),
            "sink": lambda: _landed(settings.postgres(), domain, outputs),
        }
        # A thread each: one server that is away must not hide what the other one does.
        self._threads = [threading.Thread(target=self._run, args=(way, ask[way]), daemon=True) for way in ask]

    def __enter__(self) -> Meter:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * CALL_SECONDS)

    def moving(self, within_s: float) -> bool:
        """Whether every partition has moved lately, on both ways."""
        now = time.monotonic()
        return all(way.moving(within_s, now) for way in self._ways.values())

    def stood_still(self, since: float, until: float) -> dict[str, float]:
        """By way, the longest time in which some partition did not move."""
        return {name: round(way.stood_still(since, until), 1) for name, way in self._ways.items()}

    def _run(self, name: str, ask: Callable[[], dict[Place, int]]) -> None:
        while not self._stop.wait(LOOK_S):
            with suppress(KafkaException, psycopg.Error):
                self._ways[name].look(ask(), time.monotonic())


def _ends(admin: AdminClient, topic: str) -> dict[Place, int]:
    """Where a reader of committed records would stand at the end: what an open transaction holds back does not count."""
    partitions = admin.list_topics(topic, CALL_SECONDS).topics[topic].partitions
    asked: Any = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}  # type: ignore[no-untyped-call]  # the library forgot its annotation
    answers = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=CALL_SECONDS)
    return {(place.topic, place.partition): answer.result().offset for place, answer in answers.items()}


def _landed(dsn: str, sink: str, topics: set[str]) -> dict[Place, int]:
    """A connection each time: one that was cut would keep silent for as long as the network stack likes."""
    with psycopg.connect(dsn, connect_timeout=CALL_SECONDS) as connection:
        rows = connection.execute("SELECT topic, partition, next_offset FROM onefold.ledger WHERE sink = %s", (sink,))
        return {(topic, partition): offset for topic, partition, offset in rows if topic in topics}


def _silent() -> logging.Logger:
    """Servers that are away are what this is for."""
    logger = logging.getLogger("onefold.meter")
    logger.disabled = True
    return logger
