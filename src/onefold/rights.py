"""The rights of each role in PostgreSQL. `onefold grants` prints the rights, and a service reports its missing rights.

Every declared right is necessary: without the right, PostgreSQL refuses a statement (tests/integration/test_grants.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

import psycopg

ENGINE = "onefold"
#: The table name for all tables and views of the schema.
ALL_TABLES = "*"
#: The end of each sentence about a missing right.
REMEDY = "`onefold grants` prints the SQL that gives it"
# The number of rights in a sentence. The remedy is the same for all rights.
_SHOWN = 3


class DatabaseRole(Enum):
    """A PostgreSQL role of services. The value is the role's name in options and documents."""

    OWNER = "owner"
    SINK = "sink"
    WORKER = "worker"
    READER = "reader"
    VERIFIER = "verifier"


class Right(NamedTuple):
    """A privilege on a database, a schema, a table or a sequence.

    Attributes:
        privilege: PostgreSQL's name of the privilege.
        schema: The schema; "" for a right on the database.
        table: The table, or `ALL_TABLES`; "" for a right on the schema.
        sequence: Whether `table` is the name of a sequence.
    """

    privilege: str
    schema: str = ""
    table: str = ""
    sequence: bool = False

    def __str__(self) -> str:
        if not self.schema:
            return f"{self.privilege} on the database"
        if not self.table:
            return f"{self.privilege} on the schema {self.schema}"
        if self.table == ALL_TABLES:
            return f"{self.privilege} on all tables of the schema {self.schema}"
        return f"{self.privilege} on the {'sequence' if self.sequence else 'table'} {self.schema}.{self.table}"


_READ = ("SELECT",)
_DATABASE: Mapping[DatabaseRole, tuple[str, ...]] = {
    DatabaseRole.OWNER: ("CONNECT", "CREATE", "TEMPORARY"),  # `rebuild` compares in temporary tables
    DatabaseRole.SINK: ("CONNECT", "TEMPORARY"),  # the staged rows
}
# The privileges of each role on the tables of the schema onefold. The owner owns the tables.
_ENGINE: Mapping[DatabaseRole, Mapping[str, tuple[str, ...]]] = {
    DatabaseRole.OWNER: {},
    DatabaseRole.SINK: {
        "applied": _READ,
        "version": _READ,
        "ledger": ("SELECT", "INSERT", "UPDATE"),
        "rejected": ("SELECT", "INSERT"),  # INSERT ... ON CONFLICT (key) reads the key
        "contract": ("SELECT", "INSERT", "DELETE"),
        "batch": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    },
    DatabaseRole.WORKER: {
        "applied": _READ,
        "version": _READ,
        "pending": ("SELECT", "INSERT", "UPDATE", "DELETE"),
        "done": ("SELECT", "INSERT", "DELETE"),
    },
    DatabaseRole.READER: dict.fromkeys(
        ("ledger", "rejected", "batch", "contract", "verdict", "injected", "pending", "done"), _READ
    ),
    DatabaseRole.VERIFIER: {"ledger": _READ, "rejected": _READ, "verdict": ("SELECT", "INSERT", "UPDATE")},
}

_MISSING = """
SELECT wanted.privilege, coalesce(wanted.schema, ''), coalesce(class.relname, ''), coalesce(class.relkind = 'S', false)
FROM unnest(%s::text[], %s::text[], %s::text[]) WITH ORDINALITY AS wanted (privilege, schema, name, place)
LEFT JOIN pg_namespace AS space ON space.nspname = wanted.schema
LEFT JOIN pg_class AS class ON class.relnamespace = space.oid
    AND (class.relname = wanted.name OR (wanted.name = '*' AND class.relkind IN ('r', 'p', 'v', 'm', 'f')))
WHERE NOT CASE WHEN wanted.schema IS NULL THEN has_database_privilege(current_database(), wanted.privilege)
               WHEN wanted.name IS NULL THEN has_schema_privilege(space.oid, wanted.privilege)
               WHEN class.relkind = 'S' THEN has_sequence_privilege(class.oid, wanted.privilege)
               ELSE has_table_privilege(class.oid, wanted.privilege) END
ORDER BY wanted.place, class.relname
"""


def of_engine(role: DatabaseRole) -> list[Right]:
    """List a role's rights on the database and on the schema onefold, independent of the pipelines."""
    tables = _ENGINE[role]
    return [
        *(Right(privilege) for privilege in _DATABASE.get(role, ("CONNECT",))),
        *([Right("USAGE", ENGINE)] if tables else []),
        *(Right(privilege, ENGINE, table) for table, privileges in tables.items() for privilege in privileges),
    ]


def missing(connection: psycopg.Connection[Any], rights: Iterable[Right]) -> list[Right]:
    """List the missing rights of the session's role, without rights on missing schemas and tables."""
    wanted = list(rights)
    values = (
        [one.privilege for one in wanted],
        [one.schema or None for one in wanted],
        [one.table or None for one in wanted],
    )
    return [Right(*found) for found in connection.execute(_MISSING, values).fetchall()]


def role_of(connection: psycopg.Connection[Any]) -> str:
    """The current role of the session."""
    (name,) = connection.execute("SELECT current_user").fetchone() or ("",)
    return str(name)


def lacking(connection: psycopg.Connection[Any], rights: Iterable[Right]) -> str:
    """The missing rights of the session's role, in a sentence; "" if no right is missing."""
    if not (found := missing(connection, rights)):
        return ""
    shown = ", ".join(map(str, found[:_SHOWN])) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
    return f"the role {role_of(connection)} of PostgreSQL lacks {shown}: {REMEDY}"
