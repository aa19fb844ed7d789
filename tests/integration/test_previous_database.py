"""A database that the release before migrated and landed in is gone on with, and that release can go on with ours."""

import csv
import hashlib
import io
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fastavro
import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from onefold.error_codes import Code
from onefold.processor.core.changelog_format import FORMAT
from onefold.processor.core.errors import Refused
from onefold.processor.core.topology import PROGRESS_KEY
from onefold.processor.io import admin, contracts
from onefold.processor.loading import topology_of
from onefold.processor.testing import TopologyDriver
from onefold.spark_sink.contracts import load_domain
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.landing.land import land
from onefold.spark_sink.landing.ledger import BatchRange, LastRecord, LedgerPosition, OffsetRange
from onefold.spark_sink.landing.protocols import KafkaRecord
from onefold.spark_sink.landing.staging_tables import Staged, StagingTables, open_stage
from onefold.spark_sink.postgres.connection import Connection, connect
from tests.support import previous
from tests.support.coded import raises
from tests.support.migrated import migrate_all
from tests.support.worlds import nothing_topology

pytestmark = pytest.mark.promise("the-version-before")

Reader = psycopg.Connection[Any]

# What 0.1.0 begins with.
_BOOKKEEPING = """
CREATE TABLE IF NOT EXISTS onefold.migration (
    file text PRIMARY KEY, sha256 text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
# Every column, with its type and whether an insert must name it.
_NEEDED = """
SELECT table_schema || '.' || table_name, column_name, data_type, is_nullable = 'NO' AND column_default IS NULL
    AND is_generated = 'NEVER'
FROM information_schema.columns WHERE table_schema IN ('onefold', 'runner', 'campaigns', 'trades')
"""


@pytest.fixture
def before(database: str) -> str:
    """The database as 0.1.0 left it."""
    with psycopg.connect(database, autocommit=True) as connection:
        with suppress(psycopg.errors.DuplicateObject):  # roles are the server's, and not of one database
            connection.execute("CREATE ROLE onefold_reader NOLOGIN")
        connection.execute(previous.database())
    return database


@pytest.fixture
def driver() -> TopologyDriver:
    """Runner's processor of this version, after it has gone on where 0.1.0 stopped, with three new updates."""
    log = previous.topics("runner").as_log()
    made = TopologyDriver(topology_of("runner"), partitions=previous.PARTITIONS, log=log)
    for number in range(3):
        update = {"user_id": 3000, "run_id": 1000001, "timestamp_utc": 1_639_096_200_000, "distance_meters": 7}
        made.send("runner.updates", {**update, "sequence_id": 60 + number})
    made.run()
    return made


def tables(reader: Reader) -> dict[str, list[Any]]:
    """All rows of all tables of the domains."""
    named = reader.execute(
        "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname IN ('runner', 'campaigns', 'trades')"
    ).fetchall()
    return {name: sorted(reader.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for (name,) in named}


def test_nothing_is_applied_twice(before: str, checkout: Path, reader: Reader) -> None:
    """What 0.1.0 applied under other names is known by its content, and entered with the time of then."""
    rows = tables(reader)
    assert sum(map(len, rows.values())) > 200
    old = dict(reader.execute("SELECT sha256, applied_at FROM onefold.migration").fetchall())
    assert migrate_all(before, checkout / "sql") == [
        "onefold.07.version.sql",
        "onefold.09.jobs.sql",
        "onefold.10.findings.sql",
        "onefold.11.contracts.sql",
        "onefold.12.judge.sql",
        "onefold.13.batches.sql",
        "onefold.14.coverage.sql",
        "averages.01.sql",
        "bank.01.sql",
        "bank.02.sql",
        "campaigns.02.sql",
        "campaigns.03.sql",
        "runner.02.sql",
        "runner.03.sql",
        "sheets.01.sql",
        "trades.02.sql",
    ]

    entered = reader.execute("SELECT pipeline, file, sha256, applied_at FROM onefold.applied").fetchall()
    assert {(pipeline, file) for pipeline, file, _, _ in entered} == {
        (path.name.partition(".")[0], path.name) for path in (checkout / "sql/schema").glob("*.sql")
    }
    assert {sha256: at for _, _, sha256, at in entered if sha256 in old} == old
    assert tables(reader) == rows
    assert migrate_all(before, checkout / "sql") == []


def test_a_file_that_0_1_0_applied_and_that_was_changed_since_is_refused(
    before: str, checkout: Path, tmp_path: Path
) -> None:
    """Once it is known under its new name."""
    migrate_all(before, checkout / "sql")
    (tmp_path / "schema").mkdir()
    text = (checkout / "sql/schema/runner.01.sql").read_text(encoding="utf-8")
    (tmp_path / "schema/runner.01.sql").write_text(text + "-- more\n", encoding="utf-8")
    with pytest.raises(Exception, match=r"runner\.01\.sql was changed after it was applied"):
        migrate_all(before, tmp_path)


def test_no_file_that_was_ever_shipped_was_changed(before: str, checkout: Path, reader: Reader) -> None:
    """A database that applied it would refuse every sink from now on."""
    shipped = {sha256 for (sha256,) in reader.execute("SELECT sha256 FROM onefold.migration").fetchall()}
    assert shipped <= {_sha256(path) for path in (checkout / "sql/schema").glob("*.sql")}


@pytest.fixture
def landing(before: str, checkout: Path) -> Iterator[tuple[Connection, StagingTables]]:
    """A sink for runner without Kafka and Spark, on the database of 0.1.0."""
    migrate_all(before, checkout / "sql")
    domain = load_domain("runner", checkout / "avro", checkout / "sql")
    connection = connect(before, "one")
    yield connection, open_stage(connection, domain.targets)
    connection.close()


def test_landing_goes_on_from_the_old_ledger(
    landing: tuple[Connection, StagingTables], driver: TopologyDriver, reader: Reader
) -> None:
    """What was landed is not landed again, what is new is, and the tables are what the processor says."""
    connection, stage = landing
    stored = ledger.positions(connection, "runner")
    everything, staged = _batch(driver, stage, dict.fromkeys(stored, 0), stored)
    assert any(part.end > stored[part.key].next_offset for part in everything.ranges), "there is something new"
    assert land(connection, everything, staged, stage.targets, lambda name: None)
    assert not land(connection, everything, staged, stage.targets, lambda name: None)

    for topic in driver.topology.outputs:
        columns = [
            column.name
            for column in stage.targets[topic].columns
            if column.name not in ("topic", "partition", "offset")
        ]
        rows = reader.execute(f"SELECT {', '.join(columns)} FROM {topic}").fetchall()
        said = [tuple(value[name] for name in columns) for value in driver.read(topic)]
        fields = driver.topology.outputs[topic]
        latest = {tuple(dict(zip(columns, row, strict=True))[name] for name in fields or columns): row for row in said}
        assert sorted(rows) == sorted(latest.values())
    assert {key: position.next_offset for key, position in ledger.positions(connection, "runner").items()} == {
        part.key: part.end for part in everything.ranges
    }


@pytest.mark.parametrize("domain", previous.DOMAINS)
def test_the_last_records_of_the_old_ledger_are_recognised(domain: str, before: str, checkout: Path) -> None:
    """By their fingerprints, which this version takes of the same bytes in the same way."""
    migrate_all(before, checkout / "sql")
    with psycopg.connect(before, autocommit=True) as connection:
        stored: dict[Any, LedgerPosition] = ledger.positions(connection, domain)
    kept = {(r.topic, r.partition, r.offset): r for r in previous.topics(domain).records}
    last_records = {key: position.last_record for key, position in stored.items() if position.last_record is not None}
    assert last_records
    for (topic, partition), last in last_records.items():
        found = kept[topic, partition, last.offset]
        assert KafkaRecord(last.offset, found.key, found.value, found.timestamp).fingerprint() == last.fingerprint


def test_0_1_0_goes_on_with_a_database_that_it_had_migrated(before: str, checkout: Path, reader: Reader) -> None:
    """It looks into its own bookkeeping, by its own names: there it still finds all that it has."""
    old = reader.execute("SELECT file, sha256, applied_at FROM onefold.migration ORDER BY file").fetchall()
    needed = _columns(reader)
    migrate_all(before, checkout / "sql")

    assert reader.execute("SELECT file, sha256, applied_at FROM onefold.migration ORDER BY file").fetchall() == old
    _still_fits(needed, _columns(reader))


def test_0_1_0_can_migrate_a_database_that_this_version_made(before: str, checkout: Path, reader: Reader) -> None:
    """It knows nothing of what was applied and applies all of its own again: that must change nothing."""
    names = reader.execute("SELECT file, sha256 FROM onefold.migration ORDER BY file").fetchall()
    needed = _columns(reader)
    texts = {_sha256(path): path.read_bytes() for path in (checkout / "sql/schema").glob("*.sql")}
    for schema in ("onefold", "onefold_stage", "runner", "campaigns", "trades"):
        reader.execute(f"DROP SCHEMA {schema} CASCADE")
    migrate_all(before, checkout / "sql")
    made = _columns(reader)
    reader.execute(_BOOKKEEPING)
    for file, sha256 in names:
        reader.execute(texts[sha256])
        reader.execute("INSERT INTO onefold.migration (file, sha256) VALUES (%s, %s)", (file, sha256))

    _still_fits({key: found for key, found in needed.items() if key[0] != "onefold.migration"}, made)
    assert {key: found for key, found in _columns(reader).items() if key[0] != "onefold.migration"} == made
    assert migrate_all(before, checkout / "sql") == []


def test_lag_does_not_read_a_newer_changelog(client: dict[str, str]) -> None:
    """Its progress may be of another shape; that is said, and not that nothing was folded."""
    topology = nothing_topology()
    admin.create_topics(topology, 1, client)
    producer = Producer({**client, "log_level": 0})
    producer.produce(topology.inputs[0], b"x", partition=0)
    producer.produce(topology.changelog, json.dumps({"version": FORMAT + 1}).encode(), PROGRESS_KEY, 0)
    producer.flush(10)
    with raises(Refused, Code.NEWER_VERSION, topology.changelog):
        admin.lag(topology, client)


def _batch(
    driver: TopologyDriver, stage: StagingTables, starts: dict[Any, int], stored: dict[Any, LedgerPosition]
) -> tuple[BatchRange, Staged]:
    """All output records of the driver from those offsets on, as Spark would stage them."""
    lines: list[dict[str, Any]] = []
    ranges = []
    for (topic, partition), start in starts.items():
        contract = contracts.load()[topic]
        found, end = driver.log.read(topic, partition, start)
        for offset, entry in found:
            body = io.BytesIO((entry.value or b"")[len(contract.prefix) :])
            value: Any = fastavro.schemaless_reader(body, contract.schema, None)
            row = {**value, "topic": topic, "partition": partition, "offset": offset}
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerow(row[column.name] for column in stage.targets[topic].columns)
            origin = {"target": topic, "topic": topic, "partition": partition, "offset": offset, "fingerprint": offset}
            lines.append({**origin, "at_ms": entry.timestamp_ms, "line": text.getvalue()})
        last = LastRecord(found[-1][0], found[-1][0]) if found else None
        ranges.append(OffsetRange(topic, partition, start, end, stored[topic, partition].topic_id, last))
    kinds = [("target", pa.string()), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
    schema = pa.schema([*kinds, ("fingerprint", pa.int64()), ("at_ms", pa.int64()), ("line", pa.string())])
    return BatchRange("runner", "one", tuple(ranges)), Staged(stage, pa.Table.from_pylist(lines, schema))


def _columns(reader: Reader) -> dict[tuple[str, str], tuple[str, bool]]:
    """Per table and column the type, and whether an insert must name it."""
    return {(table, column): (kind, needed) for table, column, kind, needed in reader.execute(_NEEDED).fetchall()}


def _still_fits(old: dict[tuple[str, str], Any], new: dict[tuple[str, str], Any]) -> None:
    """Every column is there with its type, and no insert of 0.1.0 lacks one."""
    assert {key: new.get(key) for key in old} == old
    tables_then = {table for table, _ in old}
    assert [key for key, (_, needed) in new.items() if key[0] in tables_then and key not in old and needed] == []


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
