"""What the sink learns of a domain from avro/ and sql/, and what it says when a piece is wrong."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from onefold import contract_files
from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured
from onefold.spark_sink.contracts import REJECTED, StagedRecord, _contract, load_domain
from tests.support.coded import raises
from tests.support.made_up_domain import write_domain


def read_contract(path: Path) -> StagedRecord:
    """The contract of a file of one record."""
    (raw,) = contract_files.records(path)
    return _contract(path, raw)


def test_the_topics_of_a_domain_are_its_merge_files(checkout: Path) -> None:
    domain = load_domain("runner", checkout / "avro", checkout / "sql")
    assert list(domain.contracts) == ["runner.messages", "runner.stats", "runner.tendency"]
    assert set(domain.targets) == {*domain.contracts, REJECTED}


def test_a_header_is_the_marker_and_the_little_endian_fingerprint(tmp_path: Path) -> None:
    """The worked example of the Avro specification's own fingerprint: the bytes of the canonical form decide."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long", "doc": "left out"}], "topics": []}
    (tmp_path / "r.avsc").write_text(json.dumps(schema), encoding="utf-8")
    plain = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    (tmp_path / "p.avsc").write_text(json.dumps(plain), encoding="utf-8")
    header = read_contract(tmp_path / "r.avsc").header
    assert header == read_contract(tmp_path / "p.avsc").header
    assert header[:2] == b"\xc3\x01"
    assert header[2:] == _crc64('{"name":"R","type":"record","fields":[{"name":"a","type":"long"}]}').to_bytes(
        8, "little"
    )


def _crc64(text: str) -> int:
    """CRC-64-AVRO as the specification words it."""
    empty = 0xC15D213AA4D7A795
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = (entry >> 1) ^ (empty if entry & 1 else 0)
        table.append(entry)
    crc = empty
    for byte in text.encode():
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (lambda root: (root / "sql/merge/odd.readings.sql").unlink(), ""),
        (lambda root: (root / "avro/odd.notes.avsc").unlink(), "/avro names the topic 'odd.notes' in its \"topics\""),
        (
            lambda root: (root / "sql/merge/odd.notes.sql").write_text("SELECT '1'::stage", encoding="utf-8"),
            "sql/merge/odd.notes.sql does not read from :stage",
        ),
        (
            lambda root: _rewrite(root / "avro/odd.notes.avsc", '"string"', '{"type": "array", "items": "long"}'),
            "odd.notes.avsc: field 'text' is an array, which the sink cannot write: write its parts into fields",
        ),
        (
            lambda root: _rewrite(root / "avro/odd.notes.avsc", '"string"', '["null", "string", "long"]'),
            "odd.notes.avsc: field 'text' may be of several types, which the sink cannot write: give each of them a field",
        ),
        (
            lambda root: _rewrite(
                root / "avro/odd.notes.avsc",
                '"string"',
                '{"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 2}',
            ),
            "odd.notes.avsc: field 'text' has 39 digits, which the sink cannot write: give it at most 38",
        ),
        (
            lambda root: _rewrite(root / "avro/odd.notes.avsc", "odd.notes", "odd.readings"),
            "odd.readings.avsc claims topic odd.readings, which odd.Notes has already",
        ),
    ],
)
def test_a_wrong_piece_is_named(
    tmp_path: Path, checkout: Path, break_it: Callable[[Path], object], sentence: str
) -> None:
    write_domain(tmp_path, checkout, "odd")
    break_it(tmp_path)
    if not sentence:  # a topic without a merge is simply not landed
        assert list(load_domain("odd", tmp_path / "avro", tmp_path / "sql").contracts) == ["odd.notes"]
        return
    with pytest.raises(Misconfigured, match=re.escape(sentence)):
        load_domain("odd", tmp_path / "avro", tmp_path / "sql")


def test_a_logical_type_counts_on_its_own_carrier_only(tmp_path: Path) -> None:
    """As Avro has it, and Spark, which gives the plain number."""
    kinds = {
        "a": {"type": "long", "logicalType": "timestamp-millis"},
        "b": {"type": "int", "logicalType": "timestamp-millis"},
        "c": {"type": "long", "logicalType": "made-up"},
        "d": {"type": "fixed", "name": "Two", "size": 2},
        "e": ["null", "Two"],
        "f": ["null"],
    }
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    (tmp_path / "r.avsc").write_text(
        json.dumps({"type": "record", "name": "R", "fields": fields[:5]}), encoding="utf-8"
    )
    columns = read_contract(tmp_path / "r.avsc").columns
    assert [column.postgres_type for column in columns] == [
        "timestamp with time zone",
        "integer",
        "bigint",
        "bytea",
        "bytea",
    ]
    (tmp_path / "r.avsc").write_text(json.dumps({"type": "record", "name": "R", "fields": fields}), encoding="utf-8")
    with raises(Misconfigured, Code.SCHEMA_WRONG):
        read_contract(tmp_path / "r.avsc")


@pytest.mark.parametrize(
    ("field", "fault"),
    [
        ("Offset", "field 'Offset' has the name of a column that the sink adds itself"),
        ("Id", "fields 'id' and 'Id' differ by case only"),
        ("xmin", ""),
        ("n" * 64, ""),
    ],
)
def test_the_fields_of_a_topic_that_is_reduced_are_columns_in_spark_alone(
    tmp_path: Path, checkout: Path, field: str, fault: str
) -> None:
    write_domain(tmp_path, checkout, "odd")
    _rewrite(tmp_path / "avro/odd.notes.avsc", '"text"', f'"{field}"')
    (tmp_path / "sql/merge/odd.notes.sql").unlink()
    (tmp_path / "sql/reduce").mkdir()
    (tmp_path / "sql/reduce/odd.notes.sums.sql").write_text("SELECT count(*) AS many FROM :batch", encoding="utf-8")
    (tmp_path / "sql/merge/odd.notes.sums.sql").write_text("SELECT * FROM :stage", encoding="utf-8")
    if fault:
        with raises(Misconfigured, Code.SCHEMA_WRONG, str(fault)):
            load_domain("odd", tmp_path / "avro", tmp_path / "sql")
    else:
        assert load_domain("odd", tmp_path / "avro", tmp_path / "sql").reduced == ["odd.notes"]


def test_a_topic_that_is_reduced_has_a_target_for_each_query(checkout: Path) -> None:
    domain = load_domain("trades", checkout / "avro", checkout / "sql")
    assert domain.reduced == list(domain.contracts) == ["trades.deltas"]
    assert [reduction.name for reduction in domain.reductions] == [
        "trades.deltas.current",
        "trades.deltas.landed",
        "trades.deltas.risk",
    ]
    assert set(domain.targets) == {REJECTED}


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (
            {"reduce/odd.notes.sums": "SELECT 1 FROM :batch"},
            "sql/reduce/odd.notes.sums.sql",
        ),
        (
            {"reduce/odd.notes.sums": "SELECT 1 FROM :batch", "merge/odd.notes.sums": "SELECT :stage"},
            "sql/reduce/odd.notes.sums.sql",
        ),
        (
            {"reduce/odd.others.sums": "SELECT x::batch", "merge/odd.others.sums": "SELECT :stage"},
            "sql/reduce/odd.others.sums.sql",
        ),
    ],
)
def test_a_wrong_reduction_is_named(tmp_path: Path, checkout: Path, files: dict[str, str], sentence: str) -> None:
    write_domain(tmp_path, checkout, "odd")
    (tmp_path / "sql/reduce").mkdir()
    for name, text in files.items():
        (tmp_path / f"sql/{name}.sql").write_text(text, encoding="utf-8")
    with raises(Misconfigured, Code.SQL_WRONG, sentence):
        load_domain("odd", tmp_path / "avro", tmp_path / "sql")


def test_a_domain_without_merges_is_named(checkout: Path) -> None:
    with raises(Misconfigured, Code.SQL_WRONG):
        load_domain("nobody", checkout / "avro", checkout / "sql")


def _rewrite(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
