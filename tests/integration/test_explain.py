"""`onefold explain` over a real broker, real processors and a real Postgres."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from onefold.cli.main import run
from onefold.cli.starter import write
from onefold.exit_codes import FAILED, OK, USAGE
from onefold.operate.record_reader import RECORDS_FIRST, RECORDS_MAX, LogReader, Stored
from onefold.printable import printable
from onefold.processor.core.decision import Proposal, ProposalKind
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import SOURCE_HEADER
from onefold.processor.io.admin import create_topics
from onefold.processor.io.partitioner import partition_of
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.loading import codec_of, topology_of
from tests.support.explained import Explained, send
from tests.support.merged import WRITER, land
from tests.support.migrated import migrate_all
from tests.support.processes import drained, instance, produce, records
from tests.support.waiting import eventually

MakeDomain = Callable[..., Topology]
HOSTILE = "\x1b[31m\u202e<script>alert(1)</script>\r\n"


@pytest.fixture
def campaigns(
    fresh_domain: MakeDomain, client: dict[str, str], database: str, checkout: Path, tmp_path: Path
) -> Explained:
    """Nothing has been sent yet."""
    migrate_all(database, checkout / "sql")
    return Explained(fresh_domain("campaigns"), client, database, tmp_path)


@pytest.fixture
def onefold(campaigns: Explained, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command line, over that broker and that database."""
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", campaigns.client["bootstrap.servers"])
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", campaigns.dsn)
    return lambda *words: run(words)


def landed(domain: Explained, *topics: str) -> None:
    land(domain.topology, domain.client, domain.dsn, topics)


def put(client: dict[str, str], topic: str, *values: tuple[bytes | None, bytes], **more: Any) -> None:
    """Records as they are, without a transaction."""
    producer = Producer(client)
    for key, value in values:
        producer.produce(topic, value, key, **more)
        producer.poll(0)
    assert producer.flush(20) == 0


def test_the_whole_story_of_a_row(campaigns: Explained) -> None:
    """From the row to the record that somebody sent, both transactions, and back through all that came before."""
    campaigns.fold([send(1, 1, 100)], [send(2, 1, 7)], [send(1, 2, 1000)], [send(1, 1, 101, version=1)])
    landed(campaigns)
    told = campaigns.explain("campaigns.totals", id="1")
    home = partition_of("1", 2)

    assert told.row is not None
    assert (told.row["sent_1"], told.row["computed"]) == ("101", "1101")
    assert told.output is not None
    assert told.output.where == told.origin
    (cause,) = told.causes
    assert (cause.record.value["sent"], cause.record.key) == (101, "1")
    inputs = [one for one in records(campaigns.client, "campaigns.sends") if one.key == b"1"]
    sources = [f"campaigns.sends/{home}/{one.offset}" for one in inputs]
    assert [step.causes[0].record.where for step in told.history] == sources[::-1]
    assert [step.changed and step.changed.get("sent_2") for step in told.history] == [None, (None, 1000), None]
    assert told.looked is not None
    assert (told.looked.whole, told.looked.by) == (True, ["id"])
    assert told.folded is not None
    assert (told.folded.task, told.folded.exact) == (home, True)
    assert told.folded.state_command.startswith(f"onefold state get campaigns 1 --at {home}:")
    assert told.batch is not None
    assert told.batch.writer == WRITER
    assert told.batch.first_offset <= int(told.output.where.rpartition("/")[2]) < told.batch.next_offset
    assert told.notes == []
    json.dumps(told.as_data())


def test_a_copy_is_followed_to_its_original(campaigns: Explained) -> None:
    """A record that lay in a partition not its key's: the copy is what was folded, the original is what somebody sent."""
    campaigns.fold([send(1, 1, 5)], partition=1 - partition_of("1", 2))
    landed(campaigns)
    told = campaigns.explain("campaigns.totals", id="1")

    assert [cause.how for cause in told.causes] == ["caused by", "a copy of"]
    assert [cause.record.where.split("/")[1] for cause in told.causes] == [
        str(partition_of("1", 2)),
        str(1 - partition_of("1", 2)),
    ]


def test_a_row_that_is_not_there(campaigns: Explained, onefold: Callable[..., int]) -> None:
    """Whether something about it is on the way, was set aside, or never became an event at all."""
    assert campaigns.explain("campaigns.totals", id="5").notes == ["campaigns.totals has no such row"]

    campaigns.fold([send(1, 1, 100), send(5, 1, -1)])
    told = campaigns.explain("campaigns.totals", id="1")
    assert any("is in Kafka, and not in PostgreSQL yet: campaigns.totals/" in note for note in told.notes), told.notes
    told = campaigns.explain("campaigns.totals", id="5")
    assert any("is a dead letter: campaigns.sends.dead/" in note for note in told.notes), told.notes
    assert not any("is written" in note for note in told.notes)
    assert onefold("dead-letters", "drop", "campaigns", "--all", "--because", "a test event") == 0
    told = campaigns.explain("campaigns.totals", id="5")
    assert any("is a dead letter, dropped by " in note and ": a test event: " in note for note in told.notes), (
        told.notes
    )

    (output,) = records(campaigns.client, "campaigns.totals")
    with psycopg.connect(campaigns.dsn) as connection:
        connection.execute(
            "INSERT INTO onefold.rejected VALUES ('campaigns', 'campaigns.totals', 0, 0, 'too much', %s),"
            " ('campaigns', 'campaigns.totals', 0, 1, 'unreadable', 'x')",
            (output.value,),
        )
    told = campaigns.explain("campaigns.totals", id="1")
    assert "the sink rejected a record of this row, in onefold.rejected: campaigns.totals/0/0: too much" in told.notes
    assert any(note.startswith("1 records in onefold.rejected") for note in told.notes)
    assert not any("the sink rejected" in note for note in campaigns.explain("campaigns.totals", id="2").notes)

    produce(campaigns.client, "campaigns.sends", [(b"9", json.dumps(send(9, 1, 1)).encode())])
    records(campaigns.client, "campaigns.sends")
    # its marker is none
    assert "1 input record is not processed yet" in campaigns.explain("campaigns.totals", id="9").notes
    assert onefold("explain", "campaigns.totals", "id=9") == FAILED


def test_retention_has_removed_the_beginning(
    campaigns: Explained, onefold: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """First the input, then the output too: what is known is said, and that is no failure."""
    campaigns.fold([send(1, 1, 100)], [send(1, 2, 200)])
    landed(campaigns)
    home = partition_of("1", 2)
    last = max(one.offset for one in records(campaigns.client, "campaigns.sends"))
    campaigns.forget("campaigns.sends", home, last + 1)
    told = campaigns.explain("campaigns.totals", id="1")

    assert told.causes[0].record.problem is not None
    assert "retention has removed" in told.causes[0].record.problem
    assert told.output is not None
    assert told.output.value["sends"] == 2
    assert len(told.history) == 2

    last = max(one.offset for one in records(campaigns.client, "campaigns.totals"))
    campaigns.forget("campaigns.totals", home, last + 1)
    assert onefold("explain", "campaigns.totals", "id=1") == OK
    assert "retention has removed" in capsys.readouterr().out


def test_bytes_that_nobody_can_read(
    campaigns: Explained, onefold: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """A row may say that it came from anything. Nothing of that moves the cursor, and nothing breaks."""
    garbage = HOSTILE.encode() + bytes(range(256))
    headers = [(SOURCE_HEADER, HOSTILE.encode())]
    put(campaigns.client, "campaigns.totals", (HOSTILE.encode(), garbage), partition=0, headers=headers)
    put(campaigns.client, "campaigns.sends", (b"\xff\x00", b"\xff" * 5_000), partition=0, timestamp=10**15)
    put(
        campaigns.client,
        "campaigns.totals",
        (b"7", b"{}"),
        partition=0,
        headers=[(SOURCE_HEADER, b"campaigns.sends/0/0")],
    )
    wrong = [b"campaigns.sends/0/" + b"9" * 5_000, b"campaigns.sends/9/0", b"no/0/0", b"\xff", b"a/\xc2\xb2/0"]
    for value in wrong:
        put(campaigns.client, "campaigns.totals", (b"7", b"{}"), partition=0, headers=[(SOURCE_HEADER, value)])
    with psycopg.connect(campaigns.dsn) as connection:
        connection.execute(
            'INSERT INTO campaigns.totals (id, email, subject, sends, changes, topic, partition, "offset")'
            " SELECT id, 'A', %s, 0, 1, 'campaigns.totals', 0, id FROM generate_series(0, 6) AS id",
            (HOSTILE,),
        )
    for number in range(7):
        assert onefold("explain", "campaigns.totals", f"id={number}") == OK
        said = capsys.readouterr().out
        assert not [char for char in said if not char.isprintable() and char != "\n"], said
        assert "cannot be decoded" in said
        assert onefold("explain", "campaigns.totals", f"id={number}", "--json") == OK
        assert json.loads(capsys.readouterr().out)["row"]["subject"] == HOSTILE


def test_a_sum_shows_its_last_records(campaigns: Explained, fresh_domain: MakeDomain) -> None:
    """A level is NULL where it stands for all."""
    trades = Explained(fresh_domain("trades"), campaigns.client, campaigns.dsn, campaigns.folder)
    codec, deltas = codec_of(trades.topology), "trades.deltas"
    for name, risk_type in (("a", "Delta"), ("b", "Vega"), ("c", "Delta")):
        fields = {
            "trade_id": name, "version": 1, "traded_at": 1, "messages": 1, "risk_type": risk_type, "region": "EMEA",
            "trade_desk": "Swaps", "value": 5, "previous_value": None, "previous_risk_type": None,
            "previous_region": None, "previous_trade_desk": None,
        }  # fmt: skip
        put(trades.client, deltas, (name.encode(), codec.encode(deltas, fields)), partition=0)
    with psycopg.connect(trades.dsn) as connection:
        connection.execute(
            'INSERT INTO trades.risk (risk_type, region, trade_desk, value, trades, topic, partition, "offset") VALUES'
            " ('Delta', NULL, NULL, 10, 2, 'trades.deltas', 0, 2), (NULL, NULL, NULL, 15, 3, 'trades.deltas', 0, 2)"
        )
    told = trades.explain("trades.risk", risk_type="Delta")

    assert [step.output.value["trade_id"] for step in told.history] == ["c", "a"]
    assert [step.output.key for step in trades.explain("trades.risk").history] == ["c", "b", "a"]


def test_it_reads_what_it_needs_and_no_more(campaigns: Explained) -> None:
    """Counted, in records and bytes: however long the topic, and whether or not there is a second record of the row."""
    codec, totals = codec_of(campaigns.topology), "campaigns.totals"
    empty = {"date_1": None, "sent_1": None, "date_2": None, "sent_2": None, "sent_rest": None, "sends": 0}

    def value(campaign: int, changes: int) -> tuple[bytes, bytes]:
        fields = {"id": campaign, "email": "A", "subject": "s" * 100, "changes": changes, **empty}
        return str(campaign).encode(), codec.encode(totals, fields)

    many = 3 * RECORDS_MAX
    around = [value(number, 1) for number in range(10, 10 + many)]
    put(campaigns.client, totals, value(1, 1), *around, value(2, 1), value(2, 2), value(1, 2), partition=0)
    with psycopg.connect(campaigns.dsn) as connection:
        connection.execute(
            'INSERT INTO campaigns.totals (id, email, subject, sends, changes, topic, partition, "offset")'
            " VALUES (1, 'A', 's', 0, 2, 'campaigns.totals', 0, %s), (2, 'A', 's', 0, 2, 'campaigns.totals', 0, %s)",
            (many + 3, many + 2),
        )
        connection.execute(
            "INSERT INTO onefold.ledger (sink, topic, partition, next_offset, topic_id, writer, updated_at)"
            " VALUES ('campaigns', 'campaigns.totals', 0, %s, 'an-id', 'test', now())",
            (many + 4,),
        )

    near = campaigns.explain(totals, limit=1, id="2")
    assert "was deleted and recreated" in near.notes[0], "the ledger has another id"
    assert [len(near.history), near.records_read <= 2 + RECORDS_FIRST + 1] == [1, True], near.records_read
    far = campaigns.explain(totals, id="1")
    size = sum(map(len, around[0]))
    assert len(far.history) == 1
    assert RECORDS_MAX < far.records_read <= RECORDS_MAX + 2
    assert far.bytes_read <= far.records_read * (size + 10)
    assert far.looked is not None
    assert (far.looked.whole, far.looked.start) == (False, many + 3 - RECORDS_MAX)
    assert len(campaigns.explain(totals, id="1", records_max=2 * many).history) == 2


def test_what_a_pipeline_writes_to_itself_is_followed(campaigns: Explained, fresh_domain: MakeDomain) -> None:
    """From the payee's line by the deposit, which the pipeline wrote, to the transfer that somebody asked for."""
    bank = Explained(fresh_domain("bank"), campaigns.client, campaigns.dsn, campaigns.folder)
    opened = [{"account": account, "change": "open", "balance": 100} for account in (1, 2)]
    asked = {"payer": 1, "transfer": 1, "payee": 2, "amount": 7}
    with instance(bank.topology, bank.client, bank.folder / "log"):
        accounts = [(str(one["account"]).encode(), json.dumps(one).encode()) for one in opened]
        produce(bank.client, "bank.accounts", list(accounts))
        drained(bank.topology, bank.client)
        produce(bank.client, "bank.transfers", [(b"1", json.dumps(asked).encode())])
        drained(bank.topology, bank.client)
    land(bank.topology, bank.client, bank.dsn, ["bank.entries"])
    told = bank.explain("bank.accounts", account="2")

    assert told.row is not None
    assert told.row["balance"] == "107.00"
    assert [cause.record.where.split("/")[0] for cause in told.causes] == ["bank.deposits", "bank.transfers"]
    assert [step.output.value["kind"] for step in told.history] == ["deposit", "open"]
    transfer = bank.explain("bank.transfers", payer="1", transfer="1")
    assert {step.output.value["kind"] for step in transfer.history} <= {"withdraw", "deposit"}, "one a partition"


def test_a_pipeline_of_ones_own(
    client: dict[str, str], database: str, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contracts and merges come from the project's folder."""
    write("orders", tmp_path / "shop")
    monkeypatch.setenv("ONEFOLD_PROJECT", str(tmp_path / "shop"))
    topology = topology_of("orders")
    create_topics(topology, 2, client)
    migrate_all(database, checkout / "sql")
    migrate_all(database, tmp_path / "shop" / "sql")
    orders = Explained(topology, client, database, tmp_path)
    with instance(topology, client, tmp_path / "log"):
        for number in range(3):
            value = {"id": str(number), "customer": "ada", "state": "placed", "cents": 100, "version": 1}
            produce(client, topology.inputs[0], [(b"ada", json.dumps(value).encode())])
            drained(topology, client)
    land(topology, client, database)
    told = orders.explain("orders.totals", customer="ada")

    assert told.row is not None
    assert told.causes[0].record.value is not None, told.causes
    assert len(told.history) >= 1


def test_hot_hot(campaigns: Explained) -> None:
    home = partition_of("1", 2)
    with (
        instance(campaigns.topology, campaigns.client, campaigns.folder / "b", name="b", replicas=2),
        instance(campaigns.topology, campaigns.client, campaigns.folder / "a", name="a", replicas=2),
    ):
        for day in range(1, 6):
            produce(campaigns.client, "campaigns.sends", [(b"1", json.dumps(send(1, day, day)).encode())])
            eventually(lambda: len(_decided(campaigns, home)) >= day, 40, f"{day} events are decided")  # noqa: B023
            # What a replica that hung says again loses, and is no part of the history.
            late = [(None, stored.value or b"") for stored in _decided(campaigns, home).values()]
            put(campaigns.client, "campaigns.decisions", *late, partition=home)
            # Each by itself: a publisher that is behind writes several in one transaction.
            drained(campaigns.topology, campaigns.client)
    landed(campaigns)
    told = campaigns.explain("campaigns.totals", id="1")

    assert told.row is not None
    assert told.row["sends"] == "5"
    assert told.folded is not None
    assert told.folded.exact
    assert told.folded.task == home
    assert [step.output.value["sends"] for step in told.history] == [5, 4, 3, 2, 1]
    assert told.batch is not None
    offsets = [one.offset for one in records(campaigns.client, "campaigns.sends")]
    assert [step.causes[0].record.where for step in told.history] == [
        f"campaigns.sends/{home}/{offset}" for offset in offsets[::-1]
    ]


def _decided(domain: Explained, partition: int) -> dict[int, Stored]:
    """The first proposal of each version, but for openings: all replicas here continue what was decided."""
    log = domain.topology.decisions
    found: dict[int, Stored] = {}
    with closing(LogReader(domain.client, 20)) as reader:
        if reader.partitions(log) <= partition or not reader.bounds(log, partition).end:
            return found
        for stored in reader.read(log, partition, *reader.bounds(log, partition)):
            proposal = MsgpackProposals().decode(stored.value)
            if isinstance(proposal, Proposal) and proposal.kind is ProposalKind.STEP:
                found.setdefault(proposal.version, stored)
    return found


def test_what_is_wrong_is_one_sentence(
    campaigns: Explained, onefold: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the code of a command that makes no sense."""
    for words, said in {
        ("nowhere.totals", "id=1"): "no pipeline nowhere",
        ("totals", "id=1"): "is no table",
        ("campaigns.nothing", "id=1"): "no table campaigns.nothing",
        ("campaigns.totals",): "has id too",
        ("campaigns.totals", "id"): "no part of a key",
        ("campaigns.totals", "id=x"): "no such key",
        ("campaigns.totals", "sent_1=1"): "no key column",
        ("campaigns.totals", "id=1; DROP TABLE campaigns.totals"): "no such key",
    }.items():
        assert onefold("explain", *words) == USAGE, words
        assert said in capsys.readouterr().err
    assert printable("\x1b[0m") == "\\x1b[0m"
