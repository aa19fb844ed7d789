"""The seeds' own examples, from Kafka through Spark to Postgres, with what they fear happening in the middle."""

import json
import os
import signal
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from tests.support.command_line import Onefold

pytestmark = [
    pytest.mark.promise("totals-never-change"),
    pytest.mark.long,  # 75 s together
]

MINUTE = 60_000
SEED_TIME = 1_509_559_388_000


def lines(*values: dict[str, object]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def update(user: int, sequence: int, meters: int, timestamp: int, run: int) -> dict[str, object]:
    return {
        "user_id": user,
        "distance_meters": meters,
        "timestamp_utc": timestamp,
        "sequence_id": sequence,
        "run_id": run,
    }


def runner_tables(onefold: Onefold, user: int) -> tuple[list[tuple[Any, ...]], ...]:
    return (
        onefold.rows("SELECT total_meters, total_time_ms FROM runner.stats WHERE user_id = %s", user),
        onefold.rows("SELECT timestamp_utc, current, previous FROM runner.tendency WHERE user_id = %s", user),
        onefold.rows("SELECT timestamp_utc FROM runner.messages WHERE user_id = %s ORDER BY sequence_id", user),
    )


def test_a_duplicate_with_another_timestamp(onefold: Onefold) -> None:
    """150 m, ten minutes later 120 m, then that one again: 270 m in ten minutes."""
    start = SEED_TIME - 10 * MINUTE
    onefold(
        "produce",
        "runner.updates",
        says=lines(update(90_001, 4, 150, start, 1000), update(90_001, 5, 120, SEED_TIME, 1000)),
    )
    onefold("produce", "runner.updates", says=lines(update(90_001, 5, 120, -1, 1000)))
    onefold.drained()

    assert runner_tables(onefold, 90_001) == (
        [(270, 10 * MINUTE)],
        [(SEED_TIME, "good job", "good job")],
        [(start,), (SEED_TIME,)],
    )


def test_a_crash_in_the_middle(onefold: Onefold) -> None:
    """The processor is killed between the first updates and the last; 'well done' is what came before."""
    start = SEED_TIME - 10 * MINUTE
    before = [(1, 30, start), (2, 40, start + 150_000), (3, 80, start + 330_000)]
    onefold("produce", "runner.updates", says=lines(*(update(90_002, n, meters, at, 2000) for n, meters, at in before)))
    os.kill(onefold.pid("processor-runner-1"), signal.SIGKILL)
    onefold("produce", "runner.updates", says=lines(update(90_002, 4, 120, SEED_TIME, 2000)))
    os.kill(onefold.pid("processor-runner-1"), signal.SIGKILL)
    onefold.drained()

    stats, tendency, messages = runner_tables(onefold, 90_002)
    assert stats == [(270, 10 * MINUTE)]
    assert tendency == [(SEED_TIME, "good job", "well done")]
    assert len(messages) == 4


SENDS = (
    {"id": 90_001, "email": "A", "subject": "A", "sent": 100, "date": "2021-12-01 12:00:00"},
    {"id": 90_002, "email": "B", "subject": "B", "sent": 100, "date": "2021-12-01 12:00:00"},
    {"id": 90_001, "email": "A", "subject": "A", "sent": 1000, "date": "2021-12-01 13:00:00"},
)
TOTALS = "SELECT id, sent_1, sent_2, computed FROM campaigns.totals WHERE id IN (90001, 90002) ORDER BY id"
RIGHT = [(90_001, 100, 1000, 1100), (90_002, 100, None, 100)]


def test_three_messages_and_a_lost_acknowledgement(onefold: Onefold) -> None:
    """1100 and 100, in slots by date; also after the sink was killed, and after the last message came again, and again."""
    onefold("produce", "campaigns.sends", says=lines(*reversed(SENDS)))
    onefold.drained()
    assert onefold.rows(TOTALS) == RIGHT
    os.kill(onefold.pid("sink-1"), signal.SIGKILL)
    onefold("produce", "campaigns.sends", says=lines(SENDS[2], SENDS[0], SENDS[2]))
    onefold.drained()

    assert onefold.rows(TOTALS) == RIGHT
    assert RIGHT[0][3:] == onefold.rows("SELECT computed FROM campaigns.totals_from_sends WHERE id = 90001")[0]


TRADE = {
    "TradeID": "0d957268-2913-4dbb-b359-5ec5ff732cac",
    "Value": 34624.51,
    "Version": 3,
    "Timestamp": 1616413258.8997078,
    "Hierarchy": {"RiskType": "Delta", "Region": "AMER", "TradeDesk": "FXSpot"},
}
ELSEWHERE = {"RiskType": "Delta", "Region": "EMEA", "TradeDesk": "Swaps"}
RISK = "SELECT region, value, trades FROM trades.risk WHERE risk_type IS NULL AND trade_desk IS NULL ORDER BY region"


def test_the_risk_of_a_trade_that_comes_twice_late_and_moves(onefold: Onefold) -> None:
    """The seed's message, twice; an older version, disregarded; a newer one in another leaf, with the processor killed."""
    onefold("produce", "trades.trades", says=lines(TRADE, TRADE, {**TRADE, "Version": 2, "Value": 1}))
    onefold.drained()
    assert onefold.rows(RISK) == [("AMER", Decimal("34624.51"), 1), (None, Decimal("34624.51"), 1)]
    os.kill(onefold.pid("processor-trades-1"), signal.SIGKILL)
    onefold(
        "produce",
        "trades.trades",
        says=lines(TRADE, {**TRADE, "Version": 4, "Value": 0.000001, "Hierarchy": ELSEWHERE}),
    )
    onefold.drained()

    tiny = Decimal("0.000001")
    assert onefold.rows(RISK) == [("AMER", 0, 0), ("EMEA", tiny, 1), (None, tiny, 1)]
    assert onefold.rows("SELECT version, value, region FROM trades.current") == [(4, tiny, "EMEA")]
    onefold("verify", "trades")


def test_landing_everything_again_changes_nothing(onefold: Onefold) -> None:
    """The ledger is set back to the beginning while the sink runs, which is worse than any lost acknowledgement."""
    everything = "SELECT * FROM campaigns.totals ORDER BY id"
    onefold("produce", "campaigns.sends", says=lines(*SENDS))
    onefold.drained()
    before = onefold.rows(everything)
    forget = "UPDATE onefold.ledger SET next_offset = 0, last_offset = NULL, last_fingerprint = NULL WHERE sink = %s"
    with psycopg.connect(onefold.dsn, autocommit=True) as connection:
        connection.execute(forget, ("campaigns",))
    onefold("produce", "campaigns.sends", says=lines(SENDS[2]))
    onefold.drained()

    assert before == onefold.rows(everything)


def test_computed_cannot_be_written(onefold: Onefold) -> None:
    """It is Postgres that computes it, from the raw columns."""
    ran = onefold.run("sql", "-c", "UPDATE campaigns.totals SET computed = 2100 WHERE id = 90001")

    assert ran.returncode != 0
    assert b"generated column" in ran.stderr


def test_every_row_names_the_record_that_last_changed_it(onefold: Onefold) -> None:
    """Topic, partition and offset."""
    tables = "runner.stats", "runner.tendency", "runner.messages", "campaigns.totals", "campaigns.sends"
    for table in (*tables, "trades.current", "trades.risk"):
        assert onefold.rows(
            f'SELECT count(*) FROM {table} WHERE topic IS NULL OR partition IS NULL OR "offset" IS NULL'
        ) == [(0,)]
