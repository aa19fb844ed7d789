"""`onefold config`: the settings in force."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from onefold.config.setting_sources import origins, unknown
from onefold.config.settings import PREFIX, Settings, files, load
from onefold.printable import printable


def command(
    as_json: Annotated[bool, typer.Option("--json", help='Print {name: {"value", "from"}} as JSON.')] = False,
) -> None:
    """Show each setting, its value without secrets, and its origin. Precedence: an option of a command, the environment, the
    working folder's `onefold.env`, the project's `onefold.env`, the default. Unknown ONEFOLD_... variables are listed on stderr.

    Example: onefold config --json
    """
    settings = load()
    for name in unknown(Settings, PREFIX, files()):
        typer.echo(f"{printable(name)} is no setting", err=True)
    found = {PREFIX + name.upper(): one for name, one in origins(settings, settings.running, files()).items()}
    if as_json:
        typer.echo(json.dumps({name: {"value": one.value, "from": one.where} for name, one in found.items()}, indent=1))
        return
    for name, one in found.items():
        typer.echo(f"{name}={_text(one.value)}  ({one.where})")


def _text(value: Any) -> str:
    """The value in the form of an environment variable."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return json.dumps(value) if isinstance(value, dict) else str(value)
