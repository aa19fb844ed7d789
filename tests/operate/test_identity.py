"""Which records are of a row: by its key, and by the Kafka key where the merge computes a column of the key."""

from typing import Any

import pytest

from onefold.operate.explain.rows import FoundRow, KeyColumn, RowIdentity
from onefold.operate.record_reader import RecordPlace, Stored


def stored(key: bytes | None) -> Stored:
    return Stored(RecordPlace("t", 0, 0), 0, key, b"", ())


def row(**key: str | None) -> FoundRow:
    columns = tuple(KeyColumn(name, TYPES.get(name, "bigint"), False, place) for place, name in enumerate(key))
    return FoundRow(columns, key, {}, None)


TYPES = {"desk": "text", "at": "timestamp without time zone", "left": "boolean", "day": "date"}
OWN = {"id": 1, "desk": "Swaps", "at": "2021-12-01T12:00:00Z", "left": True}


@pytest.mark.parametrize(
    ("key", "fields", "is_of_row"),
    [
        ({"id": "1"}, {"id": 1}, True),
        ({"id": "1"}, {"id": 2}, False),
        ({"id": "1"}, None, False),
        ({"id": None, "desk": None}, {"id": 7}, True),
        ({"id": None, "desk": None}, None, False),
        ({"id": "1", "desk": None}, {"id": 1, "desk": "Rates"}, True),
        ({"desk": "Rates"}, {"desk": "Rates"}, True),
        ({"desk": "Rates"}, {"desk": "Swaps"}, False),
        ({"left": "t"}, {"left": True}, True),
        ({"left": "f"}, {"left": False}, True),
        ({"id": "1", "day": "2021-12-01"}, {"id": 1}, False),
        ({"day": "2021-12-01"}, {"id": 1}, False),
    ],
)
def test_records_have_the_key_of_the_row(
    key: dict[str, str | None], fields: dict[str, Any] | None, is_of_row: bool
) -> None:
    """Those of another Kafka key. A column that is NULL stands for all."""
    assert RowIdentity.of(row(**key), OWN, b"own").has(stored(b"other"), fields) is is_of_row


def test_records_of_its_kafka_key_are_of_a_row_whose_key_is_computed() -> None:
    identity = RowIdentity.of(row(id="1", day="2021-12-01"), OWN, b"own")
    assert identity.has(stored(b"own"), {"id": 1})
    assert identity.has(stored(b"own"), None), "also one that cannot be decoded"
    assert not identity.has(stored(b"own"), {"id": 2})
    assert not RowIdentity.of(row(day="2021-12-01"), OWN, None).has(stored(None), {})


def test_values_that_postgresql_spells_otherwise_are_those_of_the_rows_own_record() -> None:
    at = RowIdentity.of(row(at="2021-12-01 12:00:00"), OWN, b"own")
    assert at.has(stored(b"other"), {"at": "2021-12-01T12:00:00Z"})
    assert not at.has(stored(b"other"), {"at": "2021-12-01T12:00:01Z"})
    assert not RowIdentity.of(row(at="2021-12-01 12:00:00")).has(stored(b"other"), {"at": "2021-12-01T12:00:00Z"})
