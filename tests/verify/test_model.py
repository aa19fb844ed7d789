"""A model that is one function, over a contract with a field of every type: what the judge takes from the contract alone."""

import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from onefold import pipelines
from onefold.error_codes import Code
from onefold.verify import expect, outputs
from onefold.verify.column_types import kind_of
from onefold.verify.contracts import VerifiedSchema, contract_of
from onefold.verify.expect import Column, Expected, Oracle, Table, Workload
from onefold.verify.model import model
from onefold.verify.outcomes import Fate
from onefold.verify.record import ReadRecord, Source
from onefold.verify.snapshot import DatabaseSnapshot
from onefold.verify.tables import Comparison
from onefold.verify.verdict import UNKNOWN, CannotTell, Finding
from onefold.verify.verifier import verify
from tests.integration.test_sink_types import LEAST, MOST, NAMES, ODD, TYPES, record
from tests.support.coded import raises
from tests.verify.test_types import avro

IN, OUT = "kinds.in", "kinds.out"
ORIGIN = 'topic text NOT NULL, partition integer NOT NULL, "offset" bigint NOT NULL'


def _contract() -> VerifiedSchema:
    fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}]
    for name, kind, _ in TYPES:
        fields.append({"name": name, "type": kind})
        again = kind["name"] if isinstance(kind, dict) and "name" in kind else kind
        fields.append({"name": f"{name}_or_null", "type": ["null", again], "default": None})
    return contract_of({"type": "record", "name": "Kinds", "namespace": "kinds", "fields": fields})


CONTRACT = _contract()
TABLE = Table("kinds.kinds", OUT, ("id",))


def apply(value: Any, tables: Any) -> None:
    """The first of each id. No input can be NaN; a row can."""
    if tables[TABLE.name].get(value["id"]) is None:
        nothing = {"a_double": math.nan, "a_float": math.nan} if value["id"] == 3 else {}
        tables[TABLE.name].put({**value, **nothing})


WORKLOAD = model("kinds", apply, inputs=(IN,), key="id", tables=(TABLE,))
# Of numbers that are none there can be no input.
STORY = [record(0, LEAST), record(1, MOST), record(2, LEAST), record(3, [*ODD[:3], 0.1, 0.1, *ODD[5:]])]


@pytest.fixture(autouse=True)
def contracts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this test alone."""
    monkeypatch.setattr(expect, "contracts", lambda domain=None: {IN: CONTRACT, OUT: CONTRACT})


def applied(workload: Workload = WORKLOAD) -> tuple[list[int], Expected]:
    oracle = Oracle(workload, 1)
    values = [avro(CONTRACT, fields) for fields in [*STORY, STORY[0]]]
    fates = [oracle.feed(ReadRecord(IN, 0, offset, None, value)) for offset, value in enumerate(values)]
    return fates, oracle.settled()


def test_what_puts_no_row_is_ignored_and_a_row_names_its_source() -> None:
    fates, expected = applied()
    assert fates == [Fate.ACCEPTED] * 4 + [Fate.IGNORED]
    rows = expected.model.rows[TABLE.name]
    assert list(rows) == [(0,), (1,), (2,), (3,)]
    assert rows[(1,)][1] == Source(IN, 0, 1)
    assert rows[(1,)][0][:3] == (1, True, None)


@pytest.fixture
def database(postgres_dsn: str) -> Iterator[str]:
    """The rows as they should be, in columns of the types that the sink has for them."""
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute("CREATE DATABASE kinds")
        try:
            dsn = psycopg.conninfo.make_conninfo(postgres_dsn, dbname="kinds")
            columns = ", ".join(f"{name} {kind} NOT NULL, {name}_or_null {kind}" for name, _, kind in TYPES)
            with psycopg.connect(dsn) as connection:
                connection.execute("CREATE SCHEMA kinds")
                connection.execute(f"CREATE TABLE {TABLE.name} (id bigint PRIMARY KEY, {columns}, {ORIGIN})")
                for row, source in applied()[1].model.rows[TABLE.name].values():
                    values = [*row, OUT, 0, source.offset]
                    places = ", ".join(["%s"] * len(values))
                    connection.execute(f"INSERT INTO {TABLE.name} VALUES ({places})", values)
            yield dsn
        finally:
            admin.execute("DROP DATABASE kinds WITH (FORCE)")


def findings(dsn: str) -> list[Finding]:
    expected = applied()[1]
    written = {
        key: SimpleNamespace(partition=0, offset=source.offset, source=source)
        for key, (_, source) in expected.model.rows[TABLE.name].items()
    }
    with DatabaseSnapshot(dsn) as snapshot:
        return list(Comparison(WORKLOAD, snapshot, expected, {TABLE.name: written}).findings())


def test_rows_of_every_type_are_compared(database: str) -> None:
    """Right ones are right; and every column can be wrong, which is found and nothing else."""
    assert findings(database) == []
    for name in NAMES:
        with psycopg.connect(database) as connection:
            other = f"(SELECT {name} FROM {TABLE.name} WHERE id = 1)"
            connection.execute(f"UPDATE {TABLE.name} SET {name} = {other} WHERE id = 0")
        (found,) = findings(database)
        assert (found.kind, found.key, set(found.columns)) == ("different row", {"id": 0}, {name})
        with psycopg.connect(database) as connection:
            other = f"(SELECT {name} FROM {TABLE.name} WHERE id = 2)"
            connection.execute(f"UPDATE {TABLE.name} SET {name} = {other} WHERE id = 0")
    assert findings(database) == []


def test_a_column_of_another_type_is_found(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("ALTER TABLE kinds.kinds ALTER COLUMN at_ms TYPE timestamp")
    assert "at_ms is timestamp without time zone, not timestamp with time zone" in [
        one.text for one in findings(database)
    ]


def test_a_number_that_is_none_must_be_there(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE kinds.kinds SET a_double = 0.1 WHERE id = 3")
    (found,) = findings(database)
    assert found.columns.keys() == {"a_double"}


def test_columns_may_differ_from_the_contract() -> None:
    names = [column.name for column in TABLE.columns]
    assert names == list(CONTRACT.fields)
    but = Table("kinds.kinds", OUT, ("id",), but=(Column("an_int", "instant"), Column("sum", "long", generated=True)))
    assert [column.name for column in but.columns] == [*names, "sum"]
    assert next(column for column in but.columns if column.name == "an_int").kind == "instant"
    only = Table("kinds.kinds", OUT, ("id",), (Column("id"), Column("at_ms")))
    assert [column.kind for column in only.columns] == ["long", "timestamp-millis"]


def test_a_model_that_names_or_gives_what_is_not_there_is_told() -> None:
    with raises(CannotTell, Code.MODEL_WRONG, "kinds.out"):
        _ = Table("kinds.kinds", OUT, ("id",), (Column("id"), Column("none"))).columns
    with raises(CannotTell, Code.MODEL_WRONG):
        kind_of(["null", {"type": "array", "items": "long"}])
    few = model(
        "kinds", lambda value, tables: tables[TABLE.name].put({"id": 1}), inputs=(IN,), key="id", tables=(TABLE,)
    )
    with raises(CannotTell, Code.MODEL_WRONG, "a_bool", "kinds.kinds"):
        applied(few)


def test_a_key_of_any_type_is_found_in_output_records_as_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output record has a number where its row has a day."""
    monkeypatch.setattr(outputs, "contracts", lambda domain=None: {OUT: CONTRACT})
    table = Table("kinds.kinds", OUT, tuple(NAMES))
    written = outputs.Outputs(Workload("kinds", (IN,), (table,), lambda: applied()[1].model))
    for fields in (STORY[0], STORY[1]):
        written.feed(ReadRecord(OUT, 0, 0, None, avro(CONTRACT, fields), [("onefold-source", b"kinds.in/0/0")]))
    assert list(written.last["kinds.kinds"]) == [tuple(LEAST), tuple(MOST)]


def test_without_a_model_it_is_unknown_and_says_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is asked: neither Kafka nor Postgres is there."""
    found = SimpleNamespace(load_workload=lambda: None, declared_in="pyproject.toml")
    monkeypatch.setattr(pipelines, "find", lambda: {"parcels": found})
    verdict = verify("parcels", client={}, dsn="")
    assert (verdict.outcome, verdict.exit_code) == (UNKNOWN, 2)
    sentence = (
        "no model: pyproject.toml names no verification model for parcels; write a module with WORKLOAD = model(...)"
    )
    assert verdict.reason.startswith(sentence)


def test_a_model_that_says_apart_is_taken_with_a_warning() -> None:
    """As models of earlier versions do."""
    tables = (Table("runner.stats", "runner.stats", ("run_id", "user_id")),)
    with pytest.warns(FutureWarning, match=r"of runner says apart=True, which has no effect: remove it"):
        made = model(
            "runner", lambda value, tables: None, inputs=("runner.updates",), key="user_id", tables=tables, apart=True
        )
    assert replace(made, ticks=True).inputs == ("runner.updates",)


def test_a_function_knows_when_a_record_was_sent_and_its_headers() -> None:
    seen: list[Any] = []

    def noting(value: Any, tables: Any) -> None:
        sent = tables[TABLE.name].record
        seen.append((sent.timestamp_ms, sent.headers))

    work = model("kinds", noting, inputs=(IN,), key="id", tables=(TABLE,))
    Oracle(work, 1).feed(ReadRecord(IN, 0, 0, None, avro(CONTRACT, STORY[0]), [("a", b"b")], 7))
    assert seen == [(7, [("a", b"b")])]
