"""Which records are of one row: those whose fields say the same where the table's key is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onefold.operate.reading import Stored
from onefold.operate.rows import Row
from onefold.operate.values import Fields, Values

_TEXTS = ("text", "character varying", "character")


@dataclass(frozen=True)
class Identity:
    """What records of a row have in common.

    Attributes:
        fields: by name what a record's field is; a text where only its text is known.
        key: the Kafka key that all of them have; None: they may have several.
        exact: whether `fields` has values of a record, and not texts of a table's key.
    """

    fields: Mapping[str, Any]
    key: bytes | None
    exact: bool

    @property
    def names(self) -> list[str]:
        """Of the fields that are compared."""
        return list(self.fields)

    @staticmethod
    def of_row(row: Row, fields: Fields | None, origin: Stored, accumulated: bool) -> Identity:
        """Of a row that came from a record.

        A row that is made of one record belongs under one Kafka key for ever; one that is added up may have many. A column of
        the key that is NULL stands for all, as in a table of sums.
        """
        known = fields or {}
        types = {column.name: column.type for column in row.columns}
        # The record that an added-up row names last may be one that took something away, of another value now.
        wanted = {
            name: value if accumulated and types[name] in _TEXTS else known[name]
            for name, value in row.key.items()
            if name in known and value is not None
        }
        return Identity(wanted, None if accumulated else origin.key, True)

    @staticmethod
    def of_key(key: Mapping[str, str | None]) -> Identity:
        """Of a row that is not there: all that is known is what was asked for."""
        return Identity({name: value for name, value in key.items() if value is not None}, None, False)

    def has(self, stored: Stored, values: Values) -> bool:
        """Whether the record is of the row."""
        if self.key is not None and stored.key != self.key:
            return False
        fields, problem = values.fields(stored)
        if problem is not None or not isinstance(fields, dict):
            # Of a key of its own it is part of the history, readable or not.
            return self.key is not None and not self.fields
        if not all(name in fields for name in self.fields):
            return False
        if self.exact:
            return all(fields[name] == value for name, value in self.fields.items())
        return bool(self.fields) and all(_text(fields[name]) == value for name, value in self.fields.items())


def _text(value: Any) -> str:
    """As Postgres writes it, of whatever has one spelling."""
    return {True: "t", False: "f"}[value] if isinstance(value, bool) else str(value)
