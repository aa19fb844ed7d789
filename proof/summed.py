"""What a table of sums is the sum of, as plain data."""

from dataclasses import dataclass


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
