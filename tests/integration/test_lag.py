"""How far behind the tables are, on a real broker and a real Postgres: in events and in seconds, and never by offsets alone."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]  # exported, as no checker sees

from onefold.cli import main
from onefold.config.settings import Settings
from onefold.dashboard.observer import Observer
from onefold.exit_codes import OK, UNAVAILABLE
from onefold.operate import held, lag, positions, reading
from onefold.operate.held import Held
from onefold.operate.lag import COUNTED_MAX, Lag
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import connect, delete_before
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.postgres.connection import connect as connect_sink
from onefold.workloads import runner
from tests.support.infrastructure import delete_topics, transactional
from tests.support.migrated import migrate_all
from tests.support.processes import drained, instance, produce, records
from tests.support.waiting import eventually

MakeDomain = Callable[..., Topology]
HOUR_S = 3600.0
UPDATES, STATS = "runner.updates", "runner.stats"
# Between a record's time and the moment of a look, on a slow machine.
SOON_S = 60.0


@pytest.fixture
def topology(fresh_domain: MakeDomain) -> Topology:
    return fresh_domain("runner")


@pytest.fixture
def settings(client: dict[str, str], database: str, checkout: Path) -> Settings:
    """A database with tables and a ledger without a row."""
    migrate_all(database, checkout / "sql")
    return Settings(bootstrap_servers=client["bootstrap.servers"], postgres_dsn=database)


@pytest.fixture
def abort(client: dict[str, str]) -> Callable[..., None]:
    """Writes a transaction that comes to nothing; waits until its marker is there."""

    def write(topic: str, partition: int, count: int) -> None:
        before = end(client, topic, partition)
        with transaction(client, "test-aborts") as producer:
            for _ in range(count):
                producer.produce(topic, b"nothing", partition=partition)
            assert producer.flush(20) == 0
            producer.abort_transaction(20)
        eventually(lambda: end(client, topic, partition) == before + count + 1, 20, "the marker is written")

    return write


@contextmanager
def transaction(client: dict[str, str], name: str) -> Iterator[Producer]:
    """Open, until the test ends it; a test that fails leaves none to the next one."""
    producer = transactional({**client, "transaction.timeout.ms": 600_000}, name)
    producer.begin_transaction()
    try:
        yield producer
    except BaseException:
        producer.abort_transaction(20)
        raise


def end(client: dict[str, str], topic: str, partition: int) -> int:
    """Where readers of committed records end."""
    return positions.stable_ends(AdminClient({**client}), [topic])[topic, partition]


def send(
    client: dict[str, str], topic: str, count: int, ago_s: float, key: bytes | None = None, **header: bytes
) -> None:
    """Records that were sent so long ago, to the first partition and without a transaction."""
    producer = Producer({**client})
    headers: Any = [(f"onefold-{name}", value) for name, value in header.items()]
    for _ in range(count):
        at_ms = int((time.time() - ago_s) * 1000)
        producer.produce(topic, b"{}", key, 0, timestamp=at_ms, headers=headers)
    assert producer.flush(20) == 0


def land(dsn: str, client: dict[str, str]) -> None:
    """The ledger says that all output records are in the database."""
    with closing(connect_sink(dsn, "test")) as connection:
        for (topic, partition), at in positions.stable_ends(
            AdminClient({**client}), positions.landed_topics("runner")
        ).items():
            ledger.open_partition(connection, "runner", (topic, partition), at, "id", "test")


def now(settings: Settings) -> Lag:
    return lag.of("runner", settings)


def about(age_s: float | None, wanted_s: float) -> bool:
    return age_s is not None and wanted_s <= age_s < wanted_s + SOON_S


@pytest.mark.promise("lag")
def test_drained_is_zero_also_behind_aborted_transactions(
    topology: Topology,
    settings: Settings,
    client: dict[str, str],
    database: str,
    tmp_path: Path,
    abort: Callable[..., None],
) -> None:
    """Nobody runs who could pass what was aborted at the ends of inputs and outputs: by offsets there is something left."""
    produce(client, UPDATES, [(one.key, one.value) for one in runner.generate(1, 100)])
    with instance(topology, client, tmp_path / "log"):
        drained(topology, client)
    for topic in topology.outputs:
        records(client, topic)  # a commit is answered before its markers are written
    land(database, client)
    assert now(settings) == Lag(0, 0.0, 0, 0.0)
    for place in ((UPDATES, 0), (UPDATES, 1), (STATS, 1)):
        abort(*place, 5)
        abort(*place, 1)
    assert positions.lag_of("runner", settings) == {"input_events": 16, "output_events": 8, "events": 24}
    found = now(settings)
    assert found == Lag(0, 0.0, 0, 0.0)
    assert (found.events, found.seconds) == (0, 0.0)
    observer = Observer(settings, database)
    told = observer._ask()
    assert told.seen["runner"].to_fold == 16, "as metrics have it"
    assert observer._look(told).asked.lag.lag["runner"] == found


@pytest.mark.promise("lag")
@pytest.mark.usefixtures("topology")
def test_events_that_are_not_folded_are_counted_with_the_age_of_the_oldest(
    settings: Settings, client: dict[str, str], abort: Callable[..., None]
) -> None:
    """Not the markers between them, and not what was aborted or is gone."""
    abort(UPDATES, 0, 3)
    send(client, UPDATES, 40, HOUR_S)
    produce(client, UPDATES, [(None, b"{}")] * 10, partition=1)
    abort(UPDATES, 1, 3)
    found = now(settings)
    assert (found.input_events, found.output_events, found.output_s, found.exact) == (50, 0, 0.0, True)
    assert about(found.input_s, HOUR_S)
    assert found.seconds == found.input_s
    delete_before(connect(client), UPDATES, 0, 14)  # three aborted ones, their marker, and ten
    assert now(settings).input_events == 40


@pytest.mark.long  # 15 s
@pytest.mark.promise("lag")
@pytest.mark.usefixtures("topology")
def test_what_compaction_has_removed_waits_for_nobody(settings: Settings, client: dict[str, str]) -> None:
    """Its offsets are gone for ever. The broker's cleaner comes by every 15 s, and leaves the newest segment alone."""
    entries = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    changes = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in entries.items()]
    resource = ConfigResource(ResourceType.TOPIC, UPDATES, incremental_configs=changes)
    admin = AdminClient({**client})  # it has to live until the answer is here
    admin.incremental_alter_configs([resource])[resource].result()
    sent = 0

    def fewer() -> bool:
        nonlocal sent
        send(client, UPDATES, 1, 0.0, key=b"always the same")
        sent += 1
        found = now(settings)
        assert found.exact
        return found.input_events is not None and 0 < found.input_events < sent

    eventually(fewer, 90, "something is compacted")
    assert positions.lag_of("runner", settings)["input_events"] == sent
    delete_topics(admin, (UPDATES,))  # else every later test of the guarantee sees it compacted


@pytest.mark.promise("lag")
@pytest.mark.usefixtures("topology")
def test_output_records_that_are_not_in_the_database_are_counted_with_the_age_of_the_oldest(
    settings: Settings, client: dict[str, str], database: str
) -> None:
    send(client, STATS, 5, 2 * HOUR_S)
    land(database, client)
    send(client, STATS, 7, HOUR_S)
    send(client, STATS, 1, 0.0)
    found = now(settings)
    assert (found.input_events, found.input_s, found.output_events, found.exact) == (0, 0.0, 8, True)
    assert about(found.output_s, HOUR_S)


@pytest.mark.promise("lag")
@pytest.mark.usefixtures("topology")
def test_a_copy_is_as_old_as_its_original(settings: Settings, client: dict[str, str]) -> None:
    sent = b"%d" % ((time.time() - 2 * HOUR_S) * 1000)
    send(client, UPDATES, 1, 0.0, timestamp=sent, source=f"{UPDATES}/1/0".encode())
    assert about(now(settings).input_s, 2 * HOUR_S)


@pytest.mark.usefixtures("topology")
def test_what_is_far_behind_is_not_counted_through(settings: Settings, client: dict[str, str]) -> None:
    """Then it is said that it is an upper bound; how old it is, is known all the same. Not so where nothing can be read."""
    most = COUNTED_MAX + 100
    send(client, UPDATES, most, HOUR_S)
    found = now(settings)
    assert (found.input_events, found.exact) == (most, False)
    assert about(found.input_s, HOUR_S)
    nowhere = Settings(bootstrap_servers="127.0.0.1:1", postgres_dsn=settings.postgres())
    unread = lag.looked_at(positions.behind_of(["runner"], settings), nowhere)
    assert unread == {"runner": Lag(most, None, 0, 0.0, exact=False)}


@pytest.mark.usefixtures("topology")
def test_the_command_says_so_and_what_it_does_not_know(
    settings: Settings, client: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A database that does not answer hides nothing of what Kafka knows."""
    send(client, UPDATES, 3, 0.0)
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", settings.kafka())
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", settings.postgres())
    assert main.run(["status", "--json"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert (found["lag"]["runner"]["events"], found["problems"], found["held"]) == (3, [], [])
    assert 0 <= found["lag"]["runner"]["seconds"] < SOON_S
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", psycopg.conninfo.make_conninfo(settings.postgres(), dbname="nowhere"))
    assert main.run(["status"]) == UNAVAILABLE
    out, err = capsys.readouterr()
    assert "unknown to write" in out
    assert "3 to process (" in out
    assert 'opens no session: database "nowhere" does not exist' in err


@pytest.mark.promise("lag")
@pytest.mark.usefixtures("topology")
def test_a_transaction_that_hangs_is_named_with_its_age(
    settings: Settings,
    client: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It looks drained, and is not. Others, that have ended or are open elsewhere, are not taken for it."""
    produce(client, UPDATES, [(None, b"{}")] * 3, partition=0)
    began = time.time()
    with transaction(client, "ours-elsewhere") as other, transaction(client, "their-loader") as producer:
        other.produce(STATS, b"{}", partition=1)
        producer.produce(UPDATES, b"{}", partition=1)
        producer.produce(UPDATES, b"{}", partition=0)
        assert producer.flush(20) == other.flush(20) == 0
        produce(client, UPDATES, [(None, b"{}")] * 2, partition=1)
        assert held.held(settings) == [], "it has only just begun"
        monkeypatch.setattr(held, "HELD_S", 0.2)
        found = eventually(lambda: by_place(held.held(settings), 3), 20, "three partitions are held")
        assert {place: one.transactional_id for place, one in found.items()} == {
            (UPDATES, 0): "their-loader",
            (UPDATES, 1): "their-loader",
            (STATS, 1): "ours-elsewhere",
        }
        observer = Observer(settings, settings.postgres())
        of_all = observer._look(observer._ask()).held or {}
        assert {(one.topic, one.partition) for one in of_all["runner"]} == found.keys(), "the dashboard tells of it"
        assert of_all["campaigns"] == []
        one = found[UPDATES, 1]
        assert (one.offset, one.hidden) == (0, 4), "its record, two of the other's, and a marker"
        assert 0.2 <= one.age_s <= time.time() - began + 1
        monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", settings.kafka())
        monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", settings.postgres())
        assert main.run(["status"]) == OK
        shown = capsys.readouterr().out
        assert "runner.updates/1 at offset 0: the transaction of their-loader is open for" in shown
        assert "onefold kafka transactions abort --topic runner.updates --partition 1 --start-offset 0" in shown
        other.abort_transaction(20)
        producer.commit_transaction(20)
    eventually(lambda: held.held(settings) == [], 20, "it has ended")


@pytest.mark.promise("lag")
@pytest.mark.usefixtures("topology")
def test_who_holds_it_is_unknown_to_who_may_not_read_the_log_of_transactions(
    settings: Settings, client: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "STATE_TOPIC", "nobody.has.this")
    with transaction(client, "their-loader") as producer:
        producer.produce(UPDATES, b"{}", partition=1, timestamp=int((time.time() - HOUR_S) * 1000))
        assert producer.flush(20) == 0
        (found,) = held.held(settings)
        producer.abort_transaction(20)
    assert found.transactional_id is None
    assert about(found.age_s, HOUR_S)
    assert "runner.updates/1 at offset 0: a transaction is open for 3,6" in str(found)


@pytest.mark.parametrize("ago_s", [HOUR_S, -HOUR_S])
@pytest.mark.usefixtures("topology")
def test_times_that_senders_chose_make_no_transaction_older(
    settings: Settings, client: dict[str, str], ago_s: float
) -> None:
    """Events of last year may be in a transaction that began just now."""
    with transaction(client, "their-loader") as producer:
        producer.produce(UPDATES, b"{}", partition=1, timestamp=int((time.time() - ago_s) * 1000))
        assert producer.flush(20) == 0
        assert held.held(settings) == []
        producer.abort_transaction(20)


@pytest.mark.usefixtures("topology")
def test_what_has_ended_while_it_was_looked_at_holds_nothing(
    settings: Settings, client: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old records, in a transaction of which nobody can say how short it was."""
    with transaction(client, "their-loader") as producer:
        producer.produce(UPDATES, b"{}", partition=1, timestamp=int((time.time() - HOUR_S) * 1000))
        assert producer.flush(20) == 0

        def it_ends(*_: object) -> held.Entered:
            producer.commit_transaction(20)
            eventually(lambda: end(client, UPDATES, 1) == 2, 20, "its marker is written")
            return held.NOTHING

        monkeypatch.setattr(held, "_entered_since", it_ends)
        assert held.held(settings) == []


@pytest.mark.promise("hidden-by-kafka")
@pytest.mark.usefixtures("topology")
def test_kafka_tells_how_a_transaction_was_ended(
    settings: Settings, client: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By which one whose marker is missing is not taken for an open one; and the command that is shown then is one."""
    sent_ms, committed = {}, {0: False, 1: True}
    for partition, commit in committed.items():
        with transaction(client, f"they-end-{partition}") as producer:
            sent_ms[partition] = int(time.time() * 1000)
            producer.produce(UPDATES, b"{}", partition=partition)
            assert producer.flush(20) == 0
            producer.commit_transaction(20) if commit else producer.abort_transaction(20)

    def entered() -> held.Entered | None:
        with closing(
            reading.consumer({**client, "log_level": 0}, **{"isolation.level": "read_uncommitted"})
        ) as consumer:
            found = held._entered_since(consumer, min(sent_ms.values()), time.time() * 1000)
        return None if found == held.NOTHING else found

    found = eventually(entered, 30, "the log of transactions is read")
    assert found is not None
    for partition, commit in committed.items():
        ours = [one for one in found.decided if one.transactional_id == f"they-end-{partition}"]
        owner, may_be_committed = held.Entered([], ours).owner((UPDATES, partition), sent_ms[partition])
        assert owner is not None
        assert (owner.committed, may_be_committed) == (commit, commit)
        assert owner.decided_ms is not None
        assert owner.decided_ms >= owner.since_ms

    remedy = Held(UPDATES, 1, 0, 1, None, 0.0, committed=True).remedy.split()
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", settings.kafka())
    ran = subprocess.run(
        [sys.executable, "-m", "onefold.cli.main", *remedy[1:]], capture_output=True, encoding="utf-8", timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert "ProducerId" in ran.stdout


def by_place(found: list[Held], wanted: int) -> dict[tuple[str, int], Held]:
    return {(one.topic, one.partition): one for one in found} if len(found) == wanted else {}
