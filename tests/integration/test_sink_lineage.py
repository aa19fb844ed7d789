"""A contract changes while its records are in the topic: old and new ones land side by side, and none is taken for no record."""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused
from onefold.schema_history import HEADER_BYTES
from onefold.spark_sink.contracts import Domain, load_domain
from onefold.spark_sink.landing import known_schemas
from onefold.spark_sink.postgres.connection import connect
from onefold.spark_sink.spark.query import SinkQuery
from tests.support.coded import raises
from tests.support.made_up_domain import MadeUp
from tests.support.single_object import single_object
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("made_up_topics"), pytest.mark.promise("earlier-contracts")]

Reader = psycopg.Connection[Any]
MakeQuery = Callable[..., SinkQuery]


def _price(precision: int) -> dict[str, Any]:
    return {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}}


def _kind(*symbols: str) -> dict[str, Any]:
    return {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": list(symbols)}}


WAS: list[dict[str, Any]] = [
    {"name": "id", "type": "int"},
    {"name": "text", "type": "string"},
    {"name": "gone", "type": "double"},
    _kind("old", "new"),
    _price(9),
]
IS: list[dict[str, Any]] = [
    {"name": "lang", "type": "string", "default": "en"},
    _price(18),
    _kind("returned", "new", "old"),
    {"name": "id", "type": "long"},
    {"name": "body", "type": ["null", "string"], "aliases": ["text"], "default": None},
]
MORE = {"gone": 0.5, "kind": "old", "price": Decimal("1.50")}
MERGE = """
INSERT INTO {name}.notes AS stored (id, text, topic, partition, "offset")
SELECT id, {text}, topic, partition, "offset" FROM :stage AS stage ORDER BY id
ON CONFLICT (id) DO UPDATE SET landings = stored.landings + 1;
"""


class Notes:
    """The contract of the made-up notes, which a test changes, and records of its versions."""

    def __init__(self, made_up: MadeUp, root: Path) -> None:
        self._made_up, self._root = made_up, root
        self.topic = made_up.notes

    def schema(self, fields: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "record", "name": "Notes", "namespace": self._made_up.name, "fields": fields}

    def become(self, fields: list[dict[str, Any]], *before: list[dict[str, Any]]) -> Domain:
        """What a sink of such a contract lands."""
        name, avro = self._made_up.notes, self._root / "avro"
        (avro / f"{name}.avsc").write_text(json.dumps({**self.schema(fields), "topics": [name]}), encoding="utf-8")
        (avro / "earlier").mkdir(exist_ok=True)
        for number, was in enumerate(before):
            (avro / f"earlier/{name}.{number}.avsc").write_text(json.dumps(self.schema(was)), encoding="utf-8")
        text = "concat(coalesce(body, 'nothing'), ' in ', lang, ' ', kind, ' ', price)" if fields is IS else "text"
        (self._root / f"sql/merge/{name}.sql").write_text(
            MERGE.format(name=self._made_up.name, text=text), encoding="utf-8"
        )
        return load_domain(self._made_up.name, avro, self._root / "sql")

    def send(
        self,
        fields: list[dict[str, Any]],
        *records: dict[str, Any],
        partition: int = 0,
        source: bytes | None = None,
        strangers: int = 0,
    ) -> None:
        schema = self.schema(fields)
        values = [single_object(schema, {**MORE, **one}) for one in records]
        self._made_up.send_raw(
            [(self._made_up.notes, partition, value) for value in values], source=source, strangers=strangers
        )

    def rows(self, reader: Reader) -> list[tuple[Any, ...]]:
        return reader.execute(f"SELECT id, text, landings FROM {self._made_up.name}.notes ORDER BY id").fetchall()


@pytest.fixture
def notes(made_up: MadeUp, tmp_path: Path) -> Notes:
    return Notes(made_up, tmp_path)


def test_records_of_before_land_as_the_contract_of_today(
    notes: Notes, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """Added with a default, promoted, renamed, null allowed, removed; what had landed before stays as it was."""
    notes.send(WAS, {"id": 1, "text": "one"})
    first = query(domain=notes.become(WAS))
    until_landed(first)
    first.stop()
    notes.send(WAS, {"id": 2, "text": "two"})  # an old processor goes on while new ones start
    notes.send(
        IS,
        {"id": 2**40, "body": "three", "lang": "de"},
        {"id": 3, "body": None, "lang": "de", "kind": "returned"},
        partition=1,
    )
    notes.send(WAS, {"id": 4, "text": ""}, partition=1)
    until_landed(query(domain=notes.become(IS, WAS)))
    assert notes.rows(reader) == [
        (1, "one", 1), (2, "two in en old 1.50", 1), (3, "nothing in de returned 1.50", 1), (4, " in en old 1.50", 1),
        (2**40, "three in de old 1.50", 1),
    ]  # fmt: skip
    assert reader.execute("SELECT count(*) FROM onefold.rejected").fetchone() == (0,)


def test_a_contract_that_avro_forgot_is_refused_until_it_is_there_again(
    notes: Notes, made_up: MadeUp, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """Its records would be set aside as none. So would those of a newer version, by an older sink."""
    until_landed(old := query(domain=notes.become(WAS)))
    changed = query(domain=notes.become(IS))
    old.stop()
    changed.start()
    changed.stop()
    notes.send(WAS, {"id": 1, "text": "one"})
    assert kept(reader) == {made_up.notes: 1, made_up.readings: 1}, "nothing had landed: it may be forgotten"

    until_landed(old := query(domain=notes.become(WAS)))
    old.stop()
    notes.send(WAS, {"id": 2, "text": "two"})
    again = f"`onefold contracts {made_up.name} --restore` puts the earlier one into avro/earlier/"
    with raises(Refused, Code.SCHEMA_UNKNOWN, made_up.notes, again):
        query(domain=notes.become(IS)).start()
    until_landed(new := query(domain=notes.become(IS, WAS)))
    assert [row[:2] for row in notes.rows(reader)] == [(1, "one"), (2, "two in en old 1.50")]
    new.stop()
    old_again = notes.become(WAS)
    with raises(Refused, Code.SCHEMA_UNKNOWN):
        query(domain=old_again).start()
    assert reader.execute("SELECT count(*) FROM onefold.rejected").fetchone() == (0,)


def kept(reader: Reader) -> dict[str, int]:
    """How many contracts Postgres has of each topic."""
    return dict(reader.execute("SELECT topic, count(*) FROM onefold.contract GROUP BY topic").fetchall())


@pytest.mark.long  # 11 s
def test_two_sinks_at_once_keep_each_contract_once(
    notes: Notes, database: str, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    domain = notes.become(IS, WAS)
    until_landed(query(domain=domain))
    with connect(database, "another") as connection:
        known_schemas.recognise(connection, domain)
    assert sorted(kept(reader).values()) == [1, 2]


def test_one_of_the_version_before_that_still_runs_ends_and_sets_nothing_aside(
    notes: Notes, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """Sinks are upgraded first: the new one starts beside the old one, then processors write what only the new one can read."""
    notes.send(WAS, {"id": 1, "text": "one"})
    until_landed(old := query(domain=notes.become(WAS), writer="old"))
    new = query(domain=notes.become(IS, WAS), writer="new")
    new.start()
    new.stop()  # as if it were killed: the old one is alone with what comes
    notes.send(IS, {"id": 2, "body": "two", "lang": "de"})
    failure = eventually(old.failure, 30, "the old one ends")
    assert isinstance(failure, Refused)
    assert f"which knows a schema of {notes.topic} that this one does not" in str(failure)
    old.stop()
    until_landed(new)
    assert [row[:2] for row in notes.rows(reader)] == [(1, "one"), (2, "two in de old 1.50")]
    assert reader.execute("SELECT count(*) FROM onefold.rejected").fetchone() == (0,)


def test_what_a_newer_processor_wrote_is_not_set_aside_by_a_sink_that_cannot_read_it(
    notes: Notes,
    made_up: MadeUp,
    query: MakeQuery,
    until_landed: Callable[..., None],
    reader: Reader,
) -> None:
    """Processors were upgraded before any sink. A stranger's record of the same contract is set aside, and stops nobody."""
    notes.send(WAS, {"id": 1, "text": "one"}, source=b"in/0/0")
    notes.send(IS, {"id": 2, "body": "of a stranger", "lang": "de"}, partition=1)
    old = query(domain=notes.become(WAS))
    until_landed(old)
    rejected = [(notes.topic, 1, 0)]
    assert reader.execute('SELECT topic, partition, "offset" FROM onefold.rejected').fetchall() == rejected

    torn = single_object(notes.schema(WAS), {**MORE, "id": 0, "text": ""})[:HEADER_BYTES]
    made_up.send_raw([(notes.topic, 1, torn)], source=b"in/0/9")  # a contract that it knows, and no body
    until_landed(old)
    rejected.append((notes.topic, 1, 2))
    assert reader.execute('SELECT topic, partition, "offset" FROM onefold.rejected ORDER BY 3').fetchall() == rejected

    notes.send(WAS, {"id": 3, "text": "three"}, source=b"in/0/1")
    stranger = {"id": 9, "body": "of a stranger, in front of it", "lang": "de"}
    # In one transaction: a batch that ended between them would set the stranger's aside, and land.
    notes.send(IS, stranger, {"id": 4, "body": "four", "lang": "de"}, source=b"in/0/2", strangers=1)
    failure = eventually(old.failure, 30, "the old one ends")
    assert isinstance(failure, Refused)
    assert f"{notes.topic}/0 has a processor's record at offset 5 of a schema that" in str(failure)
    old.stop()
    assert [row[0] for row in notes.rows(reader)] in ([1], [1, 3]), "no batch with such a record"

    until_landed(query(domain=notes.become(IS, WAS)))
    assert [row[::2] for row in notes.rows(reader)] == [(1, 1), (3, 1), (4, 1), (9, 1)], "it can read a stranger's too"
    assert reader.execute("SELECT count(*) FROM onefold.rejected").fetchone() == (len(rejected),)


def test_it_is_set_aside_where_that_was_asked_for_by_name(
    notes: Notes, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    notes.send(IS, {"id": 1, "body": "one", "lang": "de"}, source=b"in/0/0")
    until_landed(query(domain=notes.become(WAS), unknown_contracts=True))
    assert reader.execute("SELECT count(*) FROM onefold.rejected").fetchone() == (1,)
