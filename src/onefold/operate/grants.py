"""The SQL that gives each PostgreSQL role its rights, derived from the declarations of pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from onefold import postgres, rights
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED, USAGE
from onefold.operate import merge_sql
from onefold.pipelines import Pipeline
from onefold.rights import ALL_TABLES, DatabaseRole, Right, of_engine

if TYPE_CHECKING:
    import psycopg

#: The default role names. The schema files also give rights to `onefold_reader`.
NAMES = {role: f"onefold_{role.value}" for role in DatabaseRole}


_ANSWER_S = 5.0  # one query of the catalogues; a healthy server answers in milliseconds


class Statement(NamedTuple):
    """A statement for an administrator. `rights`: on one object; empty for the creation of a role."""

    sql: str
    role: DatabaseRole
    rights: Sequence[Right] = ()


def rights_of(role: DatabaseRole, pipelines: Iterable[Pipeline]) -> list[Right]:
    """List the rights of a role for these pipelines."""
    return [*of_engine(role), *(right for pipeline in pipelines for right in _of_pipeline(role, pipeline))]


def _of_pipeline(role: DatabaseRole, pipeline: Pipeline) -> Iterator[Right]:
    if role is DatabaseRole.OWNER or (role is DatabaseRole.WORKER and not pipeline.jobs):
        return
    yield Right("USAGE", pipeline.name)
    yield Right("SELECT", pipeline.name, ALL_TABLES)
    if role is DatabaseRole.SINK:
        for name, privilege in merge_sql.privileges(pipeline):
            yield Right(privilege, *_placed(name))


def of_sequences(connection: psycopg.Connection[Any], role: DatabaseRole, pipelines: Iterable[Pipeline]) -> list[Right]:
    """List the rights of a role on sequences: column defaults, for example of `serial` columns, use sequences in the tables of
    a sink. The statements of a pipeline do not show the sequences. An identity column needs no right.
    """
    if role is not DatabaseRole.SINK:
        return []
    tables = [_placed(name) for one in pipelines for name, verb in merge_sql.privileges(one) if verb == "INSERT"]
    columns = [schema for schema, _ in tables], [table for _, table in tables]
    return [Right("USAGE", schema, name, True) for schema, name in connection.execute(_SEQUENCES, columns).fetchall()]


_SEQUENCES = """
SELECT DISTINCT space.nspname, sequence.relname
FROM unnest(%s::text[], %s::text[]) AS wanted (schema, name)
JOIN pg_namespace AS home ON home.nspname = wanted.schema
JOIN pg_class AS class ON class.relnamespace = home.oid AND class.relname = wanted.name
JOIN pg_attrdef AS fallback ON fallback.adrelid = class.oid
JOIN pg_depend AS link ON link.classid = 'pg_attrdef'::regclass AND link.objid = fallback.oid
    AND link.refclassid = 'pg_class'::regclass
JOIN pg_class AS sequence ON sequence.oid = link.refobjid AND sequence.relkind = 'S'
JOIN pg_namespace AS space ON space.oid = sequence.relnamespace
ORDER BY 1, 2
"""


def triggers(connection: psycopg.Connection[Any], pipelines: Iterable[Pipeline]) -> list[tuple[str, str]]:
    """List the triggers on tables of a sink, as (table, trigger), if the trigger function runs with the sink's rights. The
    catalogues do not list the rights that a function needs.
    """
    tables = sorted({_placed(name) for one in pipelines for name in merge_sql.written(one)})
    columns = [schema for schema, _ in tables], [table for _, table in tables]
    return [(table, trigger) for table, trigger in connection.execute(_TRIGGERS, columns).fetchall()]


_TRIGGERS = """
SELECT wanted.schema || '.' || wanted.name, tgname
FROM unnest(%s::text[], %s::text[]) AS wanted (schema, name)
JOIN pg_namespace AS space ON space.nspname = wanted.schema
JOIN pg_class AS class ON class.relnamespace = space.oid AND class.relname = wanted.name
JOIN pg_trigger ON tgrelid = class.oid AND NOT tgisinternal
JOIN pg_proc ON pg_proc.oid = tgfoid AND NOT prosecdef
ORDER BY 1, 2
"""


def _placed(name: str) -> tuple[str, str]:
    """Schema and table of a name in a statement."""
    *schema, table = merge_sql.parts(name)
    return schema[0] if schema else "public", table


def lacking(role: DatabaseRole, dsn: str, pipelines: Sequence[Pipeline], application: str) -> str:
    """Name the missing rights of a role for the user of the DSN, in one sentence; "" if none is missing.

    Raises:
        psycopg.Error: PostgreSQL opens no session, or does not answer.
    """
    with closing(postgres.connect(dsn, application, patience_s=_ANSWER_S)) as connection:
        wanted = [*rights_of(role, pipelines), *of_sequences(connection, role, pipelines)]
        return rights.lacking(connection, wanted)


def statements(pipelines: Sequence[Pipeline], names: Mapping[DatabaseRole, str], database: str) -> list[Statement]:
    """List the statements in their order. Each statement can be repeated.

    Raises:
        UserError: two roles have the same name.
    """
    taken: dict[str, DatabaseRole] = {}
    for role, name in names.items():
        if (other := taken.setdefault(name, role)) is not role:
            raise UserError(
                Code.ARGUMENT_WRONG, f"{other.value} and {role.value} would both be the role {name}",
                "Name two roles: each has only the rights of its own services.", USAGE,
            )  # fmt: skip
    made = [Statement(_CREATE.format(quoted(names[role])), role) for role in DatabaseRole]
    given = [
        Statement(f"GRANT {', '.join(one.privilege for one in on)} ON {thing} TO {quoted(names[role])};", role, on)
        for role in DatabaseRole
        for thing, on in _by_object(rights_of(role, pipelines), database)
    ]
    return made + given


def _by_object(rights: Iterable[Right], database: str) -> Iterator[tuple[str, Sequence[Right]]]:
    for thing, found in groupby(rights, lambda right: _object(right, database)):
        yield thing, list(found)


_CREATE = "DO $$ BEGIN CREATE ROLE {} NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
_EXISTING = "SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)"


def _object(right: Right, database: str) -> str:
    if not right.schema:
        return f"DATABASE {quoted(database)}"
    if not right.table:
        return f"SCHEMA {quoted(right.schema)}"
    if right.table == ALL_TABLES:
        return f"ALL TABLES IN SCHEMA {quoted(right.schema)}"
    return f"{'SEQUENCE' if right.sequence else 'TABLE'} {quoted(right.schema)}.{quoted(right.table)}"


def quoted(name: str) -> str:
    """Quote a name for a statement, SQL keywords included."""
    return '"' + name.replace('"', '""') + '"'


def apply(
    connection: psycopg.Connection[Any],
    wanted: Sequence[Statement],
    names: Mapping[DatabaseRole, str],
    pipelines: Sequence[Pipeline] = (),
) -> list[str]:
    """Execute the statements in one transaction, except statements on missing objects. Returns the missing schemas and tables.

    Args:
        pipelines: the sink also gets rights on the sequences of these pipelines.

    Raises:
        UserError: an existing role is a superuser.
        psycopg.Error: PostgreSQL does not answer, or this role may not give the rights.
    """
    absent: list[str] = []
    with connection.transaction():
        asked = "SELECT rolname FROM pg_roles WHERE rolsuper AND rolname = ANY(%s) ORDER BY 1"
        if found := [name for (name,) in connection.execute(asked, (list(names.values()),))]:
            raise UserError(
                Code.POSTGRES_RIGHT,
                f"the role {found[0]} is a superuser, whom no right is refused",
                f"Run ALTER ROLE {quoted(found[0])} NOSUPERUSER, or name another role.",
                REFUSED,
            )
        for statement in wanted:
            if statement.rights and (name := _absent(connection, statement.rights[0])):
                absent.append(name)
            else:
                connection.execute(statement.sql.encode())
        for right in of_sequences(connection, DatabaseRole.SINK, pipelines):
            connection.execute(_grant(right, connection, names[DatabaseRole.SINK]))
    return list(dict.fromkeys(absent))


def renew(connection: psycopg.Connection[Any], pipelines: Sequence[Pipeline]) -> list[str]:
    """As the owner of the tables, give the existing roles in `NAMES` their rights on schemas and tables. Returns the schemas
    and tables of other owners, which are left out.
    """
    foreign: list[str] = []
    existing = {name for (name,) in connection.execute(_EXISTING, (list(NAMES.values()),))}
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_RIGHTS_LOCK,))
        wanted = [
            (role, right)
            for role in DatabaseRole
            if NAMES[role] in existing
            for right in (*rights_of(role, pipelines), *of_sequences(connection, role, pipelines))
        ]
        for role, right in wanted:
            for thing, is_ours in _things(connection, right):
                if is_ours:
                    connection.execute(f"GRANT {right.privilege} ON {thing} TO {quoted(NAMES[role])}".encode())
                else:
                    foreign.append(thing)
    return list(dict.fromkeys(foreign))


# One `migrate` at a time: PostgreSQL refuses a GRANT while another session changes the rights on the same table.
_RIGHTS_LOCK = 0x0F_07_1D_02
_SCHEMA = "SELECT '', pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = %(schema)s"
_TABLES = """
SELECT relname, pg_has_role(relowner, 'USAGE') FROM pg_class JOIN pg_namespace AS space ON space.oid = relnamespace
WHERE nspname = %(schema)s AND relkind = ANY (CASE WHEN %(sequence)s THEN '{S}' ELSE '{r,p,v,m,f}' END::"char"[])
    AND (%(table)s::text = '*' OR relname = %(table)s::text)
ORDER BY relname
"""


def _things(connection: psycopg.Connection[Any], right: Right) -> list[tuple[str, bool]]:
    """The existing schema or tables of a right, each with whether this role may give rights on it. All tables of a schema are
    listed singly, because a GRANT on all tables fails if one of them has another owner.
    """
    if not right.schema:
        return []
    found = connection.execute((_TABLES if right.table else _SCHEMA).encode(), right._asdict())
    return [(_object(right._replace(table=table), connection.info.dbname), is_ours) for table, is_ours in found]


def _grant(right: Right, connection: psycopg.Connection[Any], role: str) -> bytes:
    return f"GRANT {right.privilege} ON {_object(right, connection.info.dbname)} TO {quoted(role)}".encode()


def _absent(connection: psycopg.Connection[Any], right: Right) -> str:
    """The schema or the table of a right if missing, or ""."""
    asked = (
        "SELECT count(*) FROM pg_namespace AS space LEFT JOIN pg_class AS class ON relnamespace = space.oid"
        " WHERE nspname = %s AND (%s IN ('', '*') OR relname = %s)"
    )
    if not right.schema or connection.execute(asked, (right.schema, right.table, right.table)).fetchone() != (0,):
        return ""
    return right.schema if right.table in ("", ALL_TABLES) else f"{right.schema}.{right.table}"
