"""`onefold grants`: the rights of each role in PostgreSQL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from onefold.config.errors import of_postgres
from onefold.config.settings import load
from onefold.operate import pipelines

if TYPE_CHECKING:
    from onefold.operate import grants
    from onefold.pipelines import Pipeline
    from onefold.rights import Role


def command(
    domains: Annotated[list[str] | None, typer.Argument(metavar="PIPELINE", help="Pipelines. Default: all.")] = None,
    owner: Annotated[str, typer.Option(help="The role of `migrate`, `reset` and `rebuild`.")] = "onefold_owner",
    sink: Annotated[str, typer.Option(help="The role of sinks.")] = "onefold_sink",
    worker: Annotated[str, typer.Option(help="The role of workers, and of `jobs requeue`.")] = "onefold_worker",
    reader: Annotated[str, typer.Option(help="The role of the dashboard, `status` and `explain`.")] = "onefold_reader",
    verifier: Annotated[str, typer.Option(help="The role of `verify` and `audit`.")] = "onefold_verifier",
    apply: Annotated[bool, typer.Option("--apply", help="Execute the SQL, as the user of the DSN.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rights as JSON.")] = False,
) -> None:
    """Print the SQL that creates the roles of services and gives each the least rights for its work. The
    SQL may be repeated, and takes no right away. `onefold migrate` repeats it for new tables, if the roles have these names.

    Example: onefold grants | psql postgresql://admin@db/events
    """
    from psycopg.conninfo import conninfo_to_dict

    from onefold.operate import grants
    from onefold.rights import Role

    settings = load()
    known = pipelines.found()
    chosen = [known[name] for name in pipelines.checked(domains or pipelines.domains())]
    names = {
        Role.OWNER: owner, Role.SINK: sink, Role.WORKER: worker, Role.READER: reader, Role.VERIFIER: verifier
    }  # fmt: skip
    dsn = settings.postgres()
    given = conninfo_to_dict(dsn)
    statements = grants.statements(chosen, names, str(given.get("dbname") or given.get("user") or "postgres"))
    absent = _apply(dsn, statements, names, chosen) if apply else []
    if as_json:
        rights = [
            {"role": names[one.role], "service": one.role.value, "rights": [str(right) for right in one.rights]}
            for one in statements
            if one.rights
        ]
        typer.echo(json.dumps({"rights": rights, "absent": absent}, indent=1))
        return
    if not apply:
        typer.echo("\n".join(one.sql for one in statements))
        return
    typer.echo(f"rights given: {len(statements)} statements")
    if absent:
        typer.echo(
            f"not there yet: {', '.join(absent)}. Run `onefold migrate` as {owner}, and `onefold grants --apply` again."
        )


def _apply(dsn: str, statements: list[grants.Statement], names: dict[Role, str], chosen: list[Pipeline]) -> list[str]:
    import psycopg

    from onefold import postgres
    from onefold.operate import grants

    try:
        with postgres.connect(dsn, "onefold grants") as connection:
            return grants.apply(connection, statements, names, chosen)
    except psycopg.Error as error:
        raise of_postgres(error, "the rights could not be given") from None
