"""`onefold sql`: psql on the database."""

from __future__ import annotations

import os
import shutil
from typing import Annotated

import psycopg
import typer

from onefold.config import redaction
from onefold.config.errors import UserError
from onefold.config.settings import load
from onefold.error_codes import Code
from onefold.stack import postgres

# Everything after `sql` is psql's own.
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

# psql gets the connection through its environment: among the arguments everybody could read the password in `ps`.
VARIABLES = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE"}


def command(
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of psql.")] = None,
) -> None:
    """Open psql on the embedded database, or on the database of ONEFOLD_POSTGRES_DSN. The exit code is psql's.

    Example: onefold sql -c 'SELECT * FROM onefold.verdict'
    """
    connection = psycopg.conninfo.conninfo_to_dict(load().postgres())
    program = _psql()
    known = {VARIABLES[name]: str(value) for name, value in connection.items() if name in VARIABLES}
    # As sslmode. A secret that has no variable is left out: for the passphrase of a key, psql asks by itself.
    more = {name: str(value) for name, value in connection.items() if name not in {*VARIABLES, *redaction.SECRET}}
    target = [psycopg.conninfo.make_conninfo("", dbname=connection.get("dbname"), **more)] if more else []
    # psql takes this process's place, and with it the terminal and the exit code.
    os.execve(program, [program, *target, *(arguments or [])], {**os.environ, **known})  # noqa: S606


def _psql() -> str:
    """The psql of the wheel, else the machine's."""
    program = postgres.binaries() / "psql"
    found = str(program) if program.exists() else shutil.which("psql")
    if not found:
        raise UserError(Code.PROGRAM_MISSING, "there is no psql on this machine", "Install a PostgreSQL client.")
    return found
