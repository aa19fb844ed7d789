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

# All words after `sql` are arguments of psql.
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

# psql gets the connection in the environment, because `ps` shows arguments, and so a password, to all users.
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
    # Parameters without a variable, as sslmode. Secrets are left out: psql prompts for the passphrase of a key.
    more = {name: str(value) for name, value in connection.items() if name not in {*VARIABLES, *redaction.SECRET}}
    target = [psycopg.conninfo.make_conninfo("", dbname=connection.get("dbname"), **more)] if more else []
    # exec, so that psql gets the terminal and sets the exit code.
    os.execve(program, [program, *target, *(arguments or [])], {**os.environ, **known})  # noqa: S606


def _psql() -> str:
    """The psql of the wheel, else the psql in PATH."""
    program = postgres.binaries() / "psql"
    found = str(program) if program.exists() else shutil.which("psql")
    if not found:
        raise UserError(Code.PROGRAM_MISSING, "there is no psql on this machine", "Install a PostgreSQL client.")
    return found
