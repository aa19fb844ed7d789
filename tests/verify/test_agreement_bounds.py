"""Handlers and models draw their bounds at the same values: each bound of each rule is met, and the next value beyond it.

Each record has its own key, so that only the one value decides its fate.
"""

from decimal import Decimal
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from onefold.processor.apps import averages as averages_app
from onefold.processor.apps import bank as bank_app
from onefold.processor.apps import campaigns as campaigns_app
from onefold.processor.apps import runner as runner_app
from onefold.processor.apps import sheets as sheets_app
from onefold.processor.apps import trades as trades_app
from onefold.verify.owner import SOURCE_HEADER
from onefold.verify.placement import partition_of
from onefold.workloads import averages, bank, campaigns, runner, sheets, trades
from tests.support.followed import PARTITIONS, Followed

APPS = {
    averages: averages_app,
    bank: bank_app,
    campaigns: campaigns_app,
    runner: runner_app,
    sheets: sheets_app,
    trades: trades_app,
}
LONG_MAX = 2**63 - 1
START_MS = 1_767_225_600_000


class Bound(NamedTuple):
    """A field of a topic's records: values that are taken, and values that make dead letters."""

    topic: str
    field: str
    taken: tuple[Any, ...]
    dead: tuple[Any, ...]


def length(least: int, most: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Texts of the least and of the most letters, and those beyond."""
    return ("a" * least, "a" * most), ("a" * (most + 1), *("a" * (least - 1) for _ in range(least > 0)))


def number(least: Any, most: Any, step: Any = 1) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return (least, most), (least - step, most + step)


#: Decimals with exponents that the arithmetic of decimals does not take.
HUGE, TINY = Decimal("1E1000000"), Decimal("1E-2000000")
CENT, MILLIONTH, BILLIONTH = Decimal("0.01"), Decimal("0.000001"), Decimal("0.000000001")
DATES = (
    ("2021-12-01 00:00:00", "2021-12-01 23:59:59", "2020-02-29 12:00:00", "2021-12-31 12:00:00", "2021-01-01 12:00:00",
     "2021-12-01 12:00:00.1", "2021-12-01 12:00:00.123456", "2021-12-01 12:00:00+23:59", "2021-12-01 12:00:00-23:59",
     "2021-12-01 12:00:00+00:00", "2021-12-01 12:00:00-00:00", "2021-12-01 12:00:00+23:00", "2021-12-01 12:00:00+00:59",
     "0001-01-01 00:00:00", "0001-01-01 00:01:00+00:01", "9999-12-31 23:59:59.999999", "9999-12-31 23:58:59-00:01"),
    ("2021-12-01 24:00:00", "2021-12-01 12:60:00", "2021-12-01 12:00:60", "2021-02-29 12:00:00", "2021-12-32 12:00:00",
     "2021-12-00 12:00:00", "2021-13-01 12:00:00", "2021-00-01 12:00:00", "2021-12-01 12:00:00.", "2021-12-01 12:00:00.1234567",
     "2021-12-01 12:00:00+24:00", "2021-12-01 12:00:00-24:00", "2021-12-01 12:00:00+23:60", "2021-12-01 12:00:00+23",
     "0000-12-31 12:00:00", "0001-01-01 00:00:59+00:01", "9999-12-31 23:59:00-00:01", ""),
)  # fmt: skip
#: A record of each topic that is taken, without its key.
GOOD: dict[str, dict[str, Any]] = {
    "averages.left": {"value": 1, "at_ms": START_MS},
    "bank.accounts": {"change": "open", "balance": 5},
    "bank.transfers": {"transfer": 1, "payee": 5, "amount": 1},
    "campaigns.sends": {"email": "a", "subject": "s", "sent": 7, "date": "2021-12-01 12:00:00", "version": 1},
    "runner.updates": {"distance_meters": 5, "timestamp_utc": 5, "sequence_id": 5, "run_id": 5},
    "sheets.edits": {"cell": "A1"},
    "sheets.uploads": {"sheet_id": "s", "cells": 1, "size": 1, "action": "discard"},
    "trades.trades": {
        "Value": 1,
        "Version": 1,
        "Timestamp": 1.5,
        "Hierarchy": {"RiskType": "a", "Region": "b", "TradeDesk": "c"},
    },
}
NAMED_BY = {"averages.left": "name", "averages.right": "name", "sheets.finished": "sheet_id",
            "bank.accounts": "account", "bank.transfers": "payer", "campaigns.sends": "id",
            "runner.updates": "user_id", "sheets.edits": "sheet_id", "sheets.uploads": "object_id",
            "trades.trades": "TradeID"}  # fmt: skip
BOUNDS = [
    Bound("averages.left", "name", *length(1, 100)),
    Bound("averages.left", "at_ms", *number(0, 32_503_679_999_999)),
    Bound("averages.left", "value", *number(MILLIONTH - 10**12, 10**12 - MILLIONTH, MILLIONTH)),
    Bound("averages.left", "value", (MILLIONTH, -MILLIONTH, Decimal("1.5E1")), (MILLIONTH / 10, 1 + MILLIONTH / 10, HUGE, TINY)),
    Bound("bank.accounts", "balance", *number(0, 10**16 - CENT, CENT)),
    Bound("bank.accounts", "balance", (CENT, Decimal("0.100")), (CENT / 10, 1 + CENT / 10, HUGE, TINY)),
    Bound("bank.transfers", "transfer", *number(1, 1_000_000)),
    Bound("bank.transfers", "amount", *number(CENT, 10**16 - CENT, CENT)),
    Bound("bank.transfers", "amount", (Decimal("0.010"),), (-CENT, CENT / 2, -1)),
    Bound("campaigns.sends", "sent", *number(0, 10**12)),
    Bound("campaigns.sends", "version", (0, LONG_MAX), (-1, LONG_MAX + 1)),
    Bound("campaigns.sends", "email", *length(0, 500)),
    Bound("campaigns.sends", "subject", *length(0, 500)),
    Bound("campaigns.sends", "date", *DATES),
    Bound("runner.updates", "sequence_id", (0, LONG_MAX), (-1, LONG_MAX + 1)),
    Bound("runner.updates", "distance_meters", *number(0, 10_000_000)),
    Bound("runner.updates", "timestamp_utc", *number(-(2**53), 2**53)),
    Bound("sheets.edits", "sheet_id", ("a", "Zz9_.-", "a" * 64), ("", "a" * 65, "a/b", "ä")),
    Bound("sheets.edits", "cell", ("A1", "Z9", "AA1", "ZZ1", "AAA1", "XFD1", "A1048576", "A9"),
          ("", "A", "1", "A0", "A01", "a1", "XFE1", "AAAA1", "A1048577", "A10000000", "A-1", "A1A")),
    Bound("sheets.edits", "number", *number(BILLIONTH - 10**29, 10**29 - BILLIONTH, BILLIONTH)),
    Bound("sheets.edits", "number", (BILLIONTH, 0, Decimal("-0.0")), (BILLIONTH / 10, 1 + BILLIONTH / 10, HUGE, TINY)),
    Bound("sheets.edits", "text", *length(0, 32_767)),
    Bound("sheets.edits", "formula", ("=", "=" + "1" * 8191), ("=" + "1" * 8192, "", "1")),
    Bound("sheets.uploads", "object_id", ("a/b", "a/9/z", "a/" + "b" * 126), ("a", "a/", "/a", "a//b", "a/B", "a/" + "b" * 127)),
    Bound("sheets.uploads", "cells", (0, LONG_MAX), (-1,)),
    Bound("sheets.uploads", "size", (0, LONG_MAX), (-1,)),
    Bound("trades.trades", "TradeID", *length(1, 200)),
    Bound("trades.trades", "Version", (0, LONG_MAX), (-1, LONG_MAX + 1)),
    Bound("trades.trades", "Timestamp", (0, 9_007_199_254), (-0.000001, 9_007_199_254.000002)),
    Bound("trades.trades", "Value", *number(MILLIONTH - 10**12, 10**12 - MILLIONTH, MILLIONTH)),
    Bound("trades.trades", "Value", (MILLIONTH, Decimal("1.50E1"), Decimal("-0.0")),
          (MILLIONTH / 10, 1 + MILLIONTH / 10, HUGE, TINY)),
    *(Bound("trades.trades", f"Hierarchy.{name}", *length(1, 100)) for name in ("RiskType", "Region", "TradeDesk")),
]  # fmt: skip


def spelled(value: Any) -> str:
    """As JSON, with decimals in full."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{name}": {spelled(one)}' for name, one in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def record(topic: str, name: str, field: str, value: Any) -> dict[str, Any]:
    """The good record of a topic, with another value in one field."""
    fields = {NAMED_BY[topic]: name, **GOOD[topic]}
    outer, _, inner = field.partition(".")
    return {**fields, outer: {**fields[outer], inner: value} if inner else value}


def name(topic: str, number: int) -> Any:
    """A key of a topic that no other number gives."""
    texts = {"sheets.uploads": "a/{}", "trades.trades": "t{}", "sheets.edits": "s{}", "averages.left": "n{}"}
    return texts[topic].format(number) if topic in texts else 1000 + number


def fates(domain: ModuleType, sent: list[tuple[str, Any]]) -> tuple[list[bool], dict[str, int]]:
    """Whether each record makes a dead letter, and the counts of all fates. Handler and model agree on both, and on every
    output.
    """
    followed = Followed(APPS[domain].TOPOLOGY, domain.WORKLOAD)
    followed.begin()
    log, places = followed.driver.log, []
    for topic, fields in sent:
        key = str(fields[NAMED_BY[topic]]).encode()
        partition = partition_of(key.decode(), PARTITIONS)
        places.append(f"{topic}/{partition}/{log.append(topic, key, spelled(fields).encode(), partition=partition)}")
    followed.send(())
    assert followed.found() == []
    assert followed.following.judged == sum(len(followed.driver.read(topic)) for topic in domain.WORKLOAD.outputs)
    dead = {
        (headers[SOURCE_HEADER] or b"").decode()
        for topic in domain.WORKLOAD.inputs
        for *_, headers in followed.driver.records(f"{topic}.dead")
    }
    counts = followed.following.counts
    assert {fate: counts[fate] for fate in followed.counted()} == followed.counted()
    return [place in dead for place in places], counts


def several(topic: str, key: Any, *changes: dict[str, Any]) -> list[tuple[str, Any]]:
    """The good record of a topic again and again, each time with these fields."""
    return [(topic, {NAMED_BY[topic]: key, **GOOD[topic], **change}) for change in changes]


def steps(least: int, *others: int) -> list[dict[str, Any]]:
    """Updates of one run, 100 milliseconds apart, with so many metres each."""
    return [
        {"sequence_id": at, "timestamp_utc": 100 * at, "distance_meters": metres}
        for at, metres in enumerate((least, *others))
    ]


ACCOUNT, PAYMENTS = "bank.accounts", "bank.transfers"
#: By pipeline, records one after the other, and the fate of each: accepted, ignored, or dead.
SEQUENCES: dict[ModuleType, list[tuple[list[tuple[str, Any]], str]]] = {
    # 5 % faster and slower is as fast; so is one that takes no time, and of a ninth run the first is forgotten.
    runner: [
        (several("runner.updates", 1, *steps(0, 100, 105, 105, 106)), "aaaaa"),
        (several("runner.updates", 2, *steps(0, 100, 106, 106, 112)), "aaaaa"),
        (several("runner.updates", 3, *steps(0, 100, 95, 95, 90)), "aaaaa"),
        (several("runner.updates", 4, *steps(0, 100, 94, 94, 89)), "aaaaa"),
        (several("runner.updates", 5, *({"sequence_id": at} for at in (0, 0, 1, 1, 0, 2))), "aiaiia"),
        *(
            (
                several(
                    "runner.updates",
                    key,
                    *({"sequence_id": at, "run_id": run, "timestamp_utc": 100 + at} for at, run in enumerate(runs)),
                ),
                "a" * len(runs),
            )
            for key, runs in ((6, [*range(8), 0, 1]), (7, [*range(9), 0, 1]), (8, [*range(8), 0, 9, 1, 0]))
        ),
    ],
    # Of a number 1024 below the highest nobody can say; one a million above is the last. All of the balance may be paid.
    bank: [
        (several(PAYMENTS, 1, *({"transfer": at} for at in (5000, 3977, 3976, 3977, 5000))), "aadii"),
        (several(PAYMENTS, 2, *({"transfer": at} for at in (5, 1_000_005, 2_000_006, 2_000_005))), "aada"),
        (several(PAYMENTS, 3, *({"transfer": at} for at in (1, 1024, 1, 1025, 1, 2))), "aaiada"),
        (several(ACCOUNT, 4, {}) + several(PAYMENTS, 4, {"amount": 5}, {"transfer": 2, "amount": CENT}), "aaa"),
        (several(ACCOUNT, 5, {}) + several(PAYMENTS, 5, {"amount": 5 + CENT}, {"transfer": 2, "amount": 5}), "aaa"),
        (
            several(ACCOUNT, 6, {"change": "close"}, {}, {}, {"change": "close"}, {"change": "close"}, {})
            + several(PAYMENTS, 6, {}, {}),
            "iaiaiiai",
        ),
    ],
    # The greatest of (version, sent, email, subject) holds; a campaign has a thousand sends.
    campaigns: [
        (
            several("campaigns.sends", 1, {}, {}, {"sent": 6}, {"sent": 8}, {"version": 2, "sent": 0}, {"sent": 9}),
            "aiiaai",
        ),
        (several("campaigns.sends", 2, {}, {"email": "b"}, {"email": "b", "subject": "r"}, {"subject": "t"}), "aaii"),
        (
            several(
                "campaigns.sends",
                3,
                *({"date": f"2021-12-01 12:{at // 60:02}:{at % 60:02}"} for at in range(1001)),
                {"sent": 8, "date": "2021-12-01 12:00:00"},
            ),
            "a" * 1000 + "da",
        ),
    ],
    trades: [(several("trades.trades", "x", {}, {}, {"Version": 0}, {"Version": 2}, {"Value": 9}), "aiiai")],
    # A number on the bound of a step is in the minute that begins there; the 101st of a minute is one too many.
    averages: [
        (
            [
                (topic, {"name": name, "value": 1, "at_ms": START_MS + at})
                for at in (*times, 59_999, 60_000, 69_999, 70_000, 130_000)
                for topic in averages.STREAMS
            ],
            "a" * 2 * (len(times) + 5),
        )
        for name, times in (("few", range(0, 10_000, 1000)), ("many", [5] * 49), ("more", [5] * 48 + [9]))
    ],
    # Behind every hundredth edit comes a snapshot, and behind the thousandth line a segment.
    sheets: [
        (several("sheets.edits", "long", *({"cell": f"A{row}"} for row in range(1, 1001))), "a" * 1000),
        (several("sheets.edits", "short", *({} for _ in range(99))), "a" * 99),
        (
            several("sheets.edits", "made", *({} for _ in range(200)))
            + [
                ("sheets.finished", {"sheet_id": "made", "segment": 0, "root": root, "cells": 1, "size": 1, "chunks": chunks,
                                     "shared": shared, "entry": entry})
                for entry, root, chunks, shared in (
                    (100, "r/1", 1, 1), (102, "r/1", 1, 1), (101, "r/1", 1, 2), (101, "r/1", 1, 1), (101, "r/2", 1, 1),
                    (101, "r/1", 1, 0), (0, "r/1", 1, 1), (202, "r/2", 0, 0), (101, "r/3", 1, 1), (203, "r/3", 1, 1))
            ],
            "a" * 200 + "dddadidaid",
        ),
        (
            several("sheets.uploads", "a/1", *({"action": each} for each in ("complete", "complete", "discard", "discard")))
            + several("sheets.uploads", "a/2", *({"action": each} for each in ("discard", "complete", "discard", "complete"))),
            "aiaaaaaa",
        ),
    ],
}  # fmt: skip


@pytest.mark.parametrize("domain", APPS, ids=lambda domain: domain.WORKLOAD.name)
def test_what_comes_before_a_record_decides_alike(domain: ModuleType) -> None:
    sent = [one for records, _ in SEQUENCES[domain] for one in records]
    wanted = "".join(fates for _, fates in SEQUENCES[domain])
    found, counts = fates(domain, sent)
    assert [*map("d".__eq__, wanted)] == found
    assert counts["ignored"] == wanted.count("i")


@pytest.mark.parametrize("domain", APPS, ids=lambda domain: domain.WORKLOAD.name)
def test_every_bound_lies_where_the_other_side_has_it(domain: ModuleType) -> None:
    sent: list[tuple[str, Any]] = []
    wanted = []
    for bound in BOUNDS:
        if bound.topic in domain.WORKLOAD.inputs:
            for value in (*bound.taken, *bound.dead):
                sent.append((bound.topic, record(bound.topic, name(bound.topic, len(sent)), bound.field, value)))
                wanted.append((*sent[-1], value in bound.dead))
    found, _ = fates(domain, sent)
    assert [(*one, dead) for one, dead in zip(sent, found, strict=True)] == wanted
