"""Deltas of trades as the processor writes them, made by the test itself, and what the tables must hold afterwards."""

import io
import random
from collections import defaultdict
from decimal import Decimal
from itertools import product
from typing import Any

import fastavro
import psycopg

from onefold.spark_sink.kafka.topics import Topics
from onefold.verify.contracts import contracts
from tests.support.infrastructure import transactional
from tests.support.made_up_domain import at_the_end

TOPIC = "trades.deltas"
LEAVES = [
    ("Delta", "AMER", "FXSpot"),
    ("Delta", "EMEA", "FXSpot"),
    ("Vega", "AMER", 'a "desk", with\ncommas'),
    ("Ω", "é", " "),
]
_NAMES = ("risk_type", "region", "trade_desk")
_TRADES = 40

Leaf = tuple[str, str, str]


class Deltas:
    """A topic of two partitions, and the truth about it."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._looks = Topics(bootstrap_servers, {})
        self._dice = random.Random(5)
        self._versions: dict[int, int] = defaultdict(int)
        self._trades: dict[int, tuple[int, Leaf]] = {}
        self._leaves: set[Leaf] = set()
        self._producer = transactional({"bootstrap.servers": bootstrap_servers}, "deltas")

    def send(self, count: int, *, commit: bool = True) -> None:
        """So many changes of trades, new or known, in one transaction. Aborted ones are no part of the truth."""
        before = dict(self._versions), dict(self._trades), set(self._leaves)
        self._producer.begin_transaction()
        for _ in range(count):
            trade = self._dice.randrange(_TRADES)
            self._producer.produce(TOPIC, encode(self._change(trade)), f"t{trade}".encode(), trade % 2)
        self._producer.flush(20)
        if commit:
            self._producer.commit_transaction(20)
        else:
            self._producer.abort_transaction(20)
            self._versions, self._trades, self._leaves = defaultdict(int, before[0]), before[1], before[2]

    def send_raw(self, value: bytes | None) -> None:
        """Any bytes at all."""
        self._producer.begin_transaction()
        self._producer.produce(TOPIC, value, b"k", 1)
        self._producer.commit_transaction(20)

    def _change(self, trade: int) -> dict[str, Any]:
        value, leaf = self._dice.randrange(-(10**14), 10**14), self._dice.choice(LEAVES)
        before, was = self._trades.get(trade, (None, leaf))
        left = (None, None, None) if was == leaf else was
        self._trades[trade] = value, leaf
        self._leaves.add(leaf)
        self._versions[trade] += self._dice.randrange(1, 4)
        fields = {"trade_id": f"t{trade}", "version": self._versions[trade], "traded_at": 10**15 + 1, "messages": 1}
        fields |= {"value": value}
        fields |= dict(zip(_NAMES, leaf, strict=True)) | {"previous_value": before}
        return fields | {f"previous_{name}": at for name, at in zip(_NAMES, left, strict=True)}

    def is_landed(self, dsn: str) -> bool:
        """Has the ledger reached the end of both partitions?"""
        return at_the_end(dsn, "trades", self._looks, [TOPIC])

    def close(self) -> None:
        """Let go of the connections to Kafka."""
        self._looks.close()

    def levels(self) -> dict[tuple[str | None, ...], tuple[Decimal, int]]:
        """What trades.risk must hold."""
        sums: dict[tuple[str | None, ...], list[int]] = {}
        for leaf in self._leaves:
            for level in product(*((name, None) for name in leaf)):
                sums.setdefault(level, [0, 0])
        for value, leaf in self._trades.values():
            for level in product(*((name, None) for name in leaf)):
                sums[level][0] += value
                sums[level][1] += 1
        return {level: (Decimal(value).scaleb(-6), trades) for level, (value, trades) in sums.items()}

    def check(self, connection: "psycopg.Connection[Any]") -> None:
        """Every level and every trade is right."""
        rows = connection.execute("SELECT risk_type, region, trade_desk, value, trades FROM trades.risk").fetchall()
        assert {row[:3]: row[3:] for row in rows} == self.levels()
        rows = connection.execute(
            "SELECT trade_id, version, value, risk_type, region, trade_desk FROM trades.current"
        ).fetchall()
        assert {row[0]: row[1:] for row in rows} == {
            f"t{trade}": (self._versions[trade], Decimal(value).scaleb(-6), *leaf)
            for trade, (value, leaf) in self._trades.items()
        }


def encode(fields: dict[str, Any]) -> bytes:
    """An Avro single object."""
    contract, body = contracts()[TOPIC], io.BytesIO()
    fastavro.schemaless_writer(body, contract.schema, fields)
    return contract.prefix + body.getvalue()
