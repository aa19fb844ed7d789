"""`onefold explain` of tables whose rows several records fill, over a real broker and a real Postgres."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer

from onefold.operate import pipelines
from onefold.processor.core.topology import Topology
from onefold.processor.loading import codec_of
from tests.support.explained import Explained
from tests.support.migrated import migrate_all

# A campaign as it stands, and the last number that was sent of it.
FROM_TOTALS = """
INSERT INTO campaigns.both AS held (id, email, topic, partition, "offset")
SELECT id, email, topic, partition, "offset" FROM :stage
ON CONFLICT (id) DO UPDATE SET email = excluded.email, topic = excluded.topic, "offset" = excluded."offset"
"""
FROM_ACCEPTED = """
INSERT INTO campaigns.both AS held (id, sent, times) SELECT id, sent, 1 FROM :stage
ON CONFLICT (id) DO UPDATE SET sent = excluded.sent, times = held.times + 1
"""
TABLE = """
CREATE TABLE campaigns.both (
    id bigint PRIMARY KEY, email text, sent bigint, times bigint, seen timestamptz, topic text, partition int, "offset" bigint)
"""


def test_a_table_of_two_topics(
    fresh_domain: Callable[..., Topology],
    client: dict[str, str],
    database: str,
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each column is said to be of the topic that it is of. One that the other topic's merge adds up is no single record's."""
    migrate_all(database, checkout / "sql")
    campaigns = Explained(fresh_domain("campaigns"), client, database, tmp_path)
    (tmp_path / "merge").mkdir()
    (tmp_path / "merge" / "campaigns.totals.sql").write_text(FROM_TOTALS, encoding="utf-8")
    (tmp_path / "merge" / "campaigns.accepted.sql").write_text(FROM_ACCEPTED, encoding="utf-8")
    changed = replace(pipelines.found()["campaigns"], sql=tmp_path)
    monkeypatch.setattr(pipelines, "found", lambda: {"campaigns": changed})
    fields = {
        "id": 1, "email": "A", "subject": "s", "changes": 1,
        "date_1": None, "sent_1": None, "date_2": None, "sent_2": None, "sent_rest": None, "sends": 0,
    }  # fmt: skip
    producer = Producer(client)
    value = codec_of(campaigns.topology).encode("campaigns.totals", fields)
    producer.produce("campaigns.totals", value, b"1", partition=0, headers=[("onefold-source", b"campaigns.sends/0/0")])
    assert producer.flush(20) == 0
    with psycopg.connect(database) as connection:
        connection.execute(TABLE)
        connection.execute("INSERT INTO campaigns.both VALUES (1, 'A', 7, 2, now(), 'campaigns.totals', 0, 0)")

    told = campaigns.explain("campaigns.both", id="1")
    assert told.columns["sent"].startswith("a field of campaigns.accepted, which feeds the table too")
    assert told.columns["email"].endswith(
        "campaigns.totals/0/0, as far as campaigns.totals/0 tells; campaigns.accepted has that field too"
    )
    assert told.columns["seen"].startswith("not a field of the record")
    assert (told.accumulated, "several records" in told.columns["times"]) == (["times"], True)
    assert [step.output.where for step in told.history] == ["campaigns.totals/0/0"]
