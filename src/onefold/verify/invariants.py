"""What must hold of a pipeline's tables at every moment, and not only when all has landed: queries that the pipeline brings.

`sql/invariant/<pipeline>.<name>.sql` is one query that gives the rows which break the rule, and none as long as it holds:

    SELECT account, balance FROM bank.accounts WHERE balance < 0

It is asked while work goes on, so it has to be true in every snapshot, whatever has not landed yet.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import psycopg
from psycopg.rows import dict_row

from onefold import pipelines

#: The folder of a pipeline's sql/ with these queries.
FOLDER = "invariant"
# Rows that are told of one query: enough to see what is wrong.
_ROWS_MAX = 20


@dataclass(frozen=True)
class Invariant:
    """A rule: the name of its file, as `bank.total`, and its query as the file has it: PostgreSQL says what is no UTF-8."""

    name: str
    query: bytes


@dataclass(frozen=True)
class Broken:
    """A row that breaks a rule, or why the rule cannot be asked for."""

    name: str
    row: Mapping[str, Any]
    problem: str = ""

    def __str__(self) -> str:
        said = self.problem or ", ".join(f"{name} {value}" for name, value in self.row.items())
        return f"{self.name}: {said}"


def invariants(domain: str) -> tuple[Invariant, ...]:
    """Those of a pipeline, by name. Raises `pipelines.Faulty` when there is no such pipeline."""
    folder = pipelines.find()[domain].sql / FOLDER
    return tuple(Invariant(path.stem, path.read_bytes()) for path in sorted(folder.glob(f"{domain}.*.sql")))


def broken(connection: "psycopg.Connection[Any]", rules: tuple[Invariant, ...]) -> Iterator[Broken]:
    """The rows that break them, each rule asked within the connection's own snapshot.

    Raises:
        psycopg.OperationalError, psycopg.InterfaceError: the database is away. What is wrong with a query itself is `Broken`, as
            nothing holds then.
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
