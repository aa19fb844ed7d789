"""What the auditor asks PostgreSQL for: of large tables as little as it can do with."""

import psycopg

from onefold.verify.snapshot import Snapshot
from onefold.workloads import campaigns
from tests.support.stage import Stage

# No row has it.
NEW = 2**31 - 1


def test_postgres_is_asked_for_what_is_new_and_for_rows_by_their_keys(bootstrap_servers: str, database: str) -> None:
    """Of tables that are too large to be read whole each time."""
    stage = Stage(bootstrap_servers, database, campaigns.WORKLOAD)
    stage.play(campaigns.generate(1, 300, campaigns=40))
    sends = stage.workload.outputs["campaigns.accepted"]
    with Snapshot(stage.dsn) as before:
        horizon, rows = before.horizon(), list(before.in_blocks(sends, 0, 2**31))
    assert len(rows) == len(stage.expected.model.rows[sends.name])
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute("UPDATE campaigns.sends SET sent = sent + 1 WHERE id = 1")
    with Snapshot(stage.dsn) as after:
        assert 1 in {row[0] for row in after.newer(sends, horizon)}
        assert len(list(after.newer(sends, after.horizon()))) < len(rows)
        keys = [row[:2] for row in rows[:3]]
        assert {row[:2] for row in after.by_keys(sends, [*keys, (NEW, rows[0][1])])} == set(keys)
        assert after.count(sends.name) == len(rows)
