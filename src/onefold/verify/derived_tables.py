"""Tables derived from the rows of a table, without an output record for each row: sums, and gathered rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: The values of a row, by column; the values of its key.
Row = tuple[Any, ...]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Sums:
    """The sums in a table over the rows of a second table.

    Attributes:
        of: the table of the rows to add up, grouped by the key columns of the sums.
        amounts: pairs of a column of the sums and the column to add up; "" counts rows.
        levels: whether there are also sums over each subset of the key columns, with NULL in the remaining key columns.
    """

    of: str
    amounts: tuple[tuple[str, str], ...]
    levels: bool = False


@dataclass(frozen=True)
class Gathered:
    """The rows in a table that combine rows of a second table. Each row of the second table is written once and never changes.

    Attributes:
        of: the second table.
        key: a function from a row of `of` to the key of the combined row; None: the row is left out.
        row: a function that adds a row of `of` to the combined row (None: not yet existing) and returns the new combined row.
            Rows of one partition come in the order of offsets; rows of different partitions come in any order.
    """

    of: str
    key: Callable[[Row], Key | None]
    row: Callable[[Row | None, Row], Row]
