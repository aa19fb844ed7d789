"""Trading data for tests of the dashboard: writes to a real database what a producer and the sink would write."""

import json
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice, product
from typing import Any

import psycopg

from onefold.workloads.trade_feed import Feed

_MILLIONTH = Decimal("0.000001")
_RISK = """
INSERT INTO trades.risk AS stored (risk_type, region, trade_desk, value, trades, topic, partition, "offset")
VALUES (%s, %s, %s, %s, %s, 'trades.deltas', 0, %s)
ON CONFLICT (risk_type, region, trade_desk) DO UPDATE
SET value = stored.value + excluded.value, trades = stored.trades + excluded.trades, "offset" = excluded."offset"
"""
_TRUTH = """
INSERT INTO trades.truth (risk_type, region, trade_desk, value, trades, told_at)
VALUES (%s, %s, %s, %s, %s, clock_timestamp() - make_interval(secs => %s))
ON CONFLICT (risk_type, region, trade_desk) DO UPDATE
SET value = excluded.value, trades = excluded.trades, told_at = excluded.told_at
"""
_LANDED = """
INSERT INTO trades.landed (landed_at, sent_at, messages)
VALUES (clock_timestamp() - make_interval(secs => %(ago)s),
        clock_timestamp() - make_interval(secs => %(ago)s + %(took)s), %(messages)s)
"""
_LEDGER = """
INSERT INTO onefold.ledger (sink, topic, partition, next_offset, topic_id, writer, updated_at)
VALUES ('trades', 'trades.deltas', 0, %s, 'an-id', 'test', clock_timestamp())
ON CONFLICT (sink, topic, partition) DO UPDATE SET next_offset = excluded.next_offset, updated_at = excluded.updated_at
"""

Leaf = tuple[str, str, str]


class Floor:
    """Messages of a seeded feed, written batch by batch; each batch is one transaction, as in the sink."""

    def __init__(self, dsn: str, seed: int = 7) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.offset = 0
        self._feed = Feed(seed, 10_000_000)
        self._messages: Iterator[Any] = iter(self._feed)
        self._current: dict[str, tuple[int, Decimal, Leaf]] = {}

    def land(self, count: int, ago_s: float = 0.0, took_s: float = 0.5) -> None:
        """Generate and write `count` messages, with a commit `ago_s` seconds ago and latencies from `took_s` on."""
        changes: dict[Leaf, list[Any]] = defaultdict(lambda: [Decimal(0), 0])
        for message in islice(self._messages, count):
            self._fold(json.loads(message.value, parse_float=Decimal), changes)
        with self.connection.transaction():
            self.add(changes)
            for share, slower in ((0.6, 0.0), (0.38, 0.15), (0.02, 0.9)):
                took = {"ago": ago_s, "took": took_s + slower, "messages": max(1, round(count * share))}
                self.connection.execute(_LANDED, took)

    def report(self, ago_s: float = 0.0) -> None:
        """Write the producer's report of all sums, dated `ago_s` seconds ago."""
        report(self.connection, self._feed, ago_s)

    def add(self, changes: dict[Leaf, list[Any]]) -> None:
        """Add {leaf: [value, trades]} to leaves and to every level above."""
        self.offset += 1
        levels: dict[tuple[str | None, ...], list[Any]] = defaultdict(lambda: [Decimal(0), 0])
        for leaf, (value, trades) in changes.items():
            for level in product(*((name, None) for name in leaf)):
                levels[level][0] += value
                levels[level][1] += trades
        with self.connection.cursor() as cursor:
            cursor.executemany(_RISK, [(*level, *added, self.offset) for level, added in levels.items()])
            cursor.execute(_LEDGER, (self.offset,))

    def judge(
        self, outcome: str, reason: str = "every row is what follows from the input log", records: int = 0
    ) -> None:
        """Write a verdict of `onefold verify`."""
        self.connection.execute(
            "INSERT INTO onefold.verdict VALUES ('trades', %s, %s, %s, %s, clock_timestamp())"
            " ON CONFLICT (domain) DO UPDATE SET outcome = excluded.outcome, reason = excluded.reason,"
            " offsets = excluded.offsets, judged_at = excluded.judged_at",
            (outcome, reason, json.dumps({"records": records}), json.dumps({"trades.deltas": {"0": self.offset}})),
        )

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _fold(self, trade: dict[str, Any], changes: dict[Leaf, list[Any]]) -> None:
        names = trade["Hierarchy"]
        leaf = names["RiskType"], names["Region"], names["TradeDesk"]
        before = self._current.get(trade["TradeID"])
        if before is not None:
            if trade["Version"] <= before[0]:
                return
            changes[before[2]][0] -= before[1]
            changes[before[2]][1] -= 1
        value = Decimal(trade["Value"])
        changes[leaf][0] += value
        changes[leaf][1] += 1
        self._current[trade["TradeID"]] = trade["Version"], value, leaf


def report(connection: psycopg.Connection[Any], feed: Feed, ago_s: float = 0.0) -> None:
    """Write a feed's expected sums, dated `ago_s` seconds ago."""
    rows = [(*leaf, value * _MILLIONTH, trades, ago_s) for leaf, (value, trades) in feed.truth().items()]
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(_TRUTH, rows)
