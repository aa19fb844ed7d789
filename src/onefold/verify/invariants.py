"""Invariants: queries of a pipeline about its tables that must return no row at any moment, even while the sink lags.

`sql/invariant/<pipeline>.<name>.sql` is a query for the rows in violation of the rule:

    SELECT account, balance FROM bank.accounts WHERE balance < 0

The query runs on a live database, so the rule must hold in every snapshot, whichever output records are still unwritten.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import psycopg
from psycopg.rows import dict_row

from onefold import pipelines

#: The folder of these queries in a pipeline's sql/.
FOLDER = "invariant"
# The rows reported for a query: enough to see the fault.
_ROWS_MAX = 20


@dataclass(frozen=True)
class Invariant:
    """A rule: the name of its file, such as `bank.total`, and its query as bytes, for PostgreSQL to report invalid UTF-8."""

    name: str
    query: bytes


@dataclass(frozen=True)
class Broken:
    """A row in violation of a rule, or the reason why the query fails."""

    name: str
    row: Mapping[str, Any]
    problem: str = ""

    def __str__(self) -> str:
        said = self.problem or ", ".join(f"{name} {value}" for name, value in self.row.items())
        return f"{self.name}: {said}"


def invariants(domain: str) -> tuple[Invariant, ...]:
    """Return the invariants of a pipeline, by name. Raises `pipelines.InvalidDeclaration` for an unknown pipeline."""
    folder = pipelines.find()[domain].sql / FOLDER
    return tuple(Invariant(path.stem, path.read_bytes()) for path in sorted(folder.glob(f"{domain}.*.sql")))


def broken(connection: "psycopg.Connection[Any]", rules: tuple[Invariant, ...]) -> Iterator[Broken]:
    """Yield the rows in violation, with each query in the connection's own snapshot.

    Raises:
        psycopg.OperationalError, psycopg.InterfaceError: the database is unavailable. An error in a query is a `Broken`,
        because the rule is then unproved.
    """
    for rule in rules:
        try:
            with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
                yield from [Broken(rule.name, row) for row in islice(cursor.execute(rule.query), _ROWS_MAX)]
        except (psycopg.OperationalError, psycopg.InterfaceError):
            raise
        except psycopg.Error as error:
            problem = (str(error).strip().splitlines() or [type(error).__name__])[0]
            yield Broken(rule.name, {}, f"the query does not work: {problem}")
