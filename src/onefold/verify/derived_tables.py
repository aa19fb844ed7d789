"""What a table is made of that no single output record fills: the sums over another table, or what its rows say together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: The values of a row, by column; the values of its key.
Row = tuple[Any, ...]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Sums:
    """How the rows of a table of sums come about.

    Attributes:
        of: the table whose rows are added up, by the columns of the key of the sums.
        amounts: per column of the sums the column of that table that is added up; "" counts the rows.
        levels: for every choice of key columns there is a row of the sums over these: NULL stands for all.
    """

    of: str
    amounts: tuple[tuple[str, str], ...]
    levels: bool = False


@dataclass(frozen=True)
class Gathered:
    """How the rows of a table come about that are gathered from rows of another one, each of which is written once and stays.

    Attributes:
        of: that other table.
        key: of one of its rows, the key of the row that it goes into; None: it goes into none.
        row: the row with one more of them; None stands for a row that is not there yet. Those of one partition come in the order
            of offsets, and between partitions there is no order.
    """

    of: str
    key: Callable[[Row], Key | None]
    row: Callable[[Row | None, Row], Row]
