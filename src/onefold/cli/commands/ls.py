"""`onefold ls`: pipelines, topics and tables."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from onefold.operate import merge_sql, pipelines
from onefold.pipelines import InvalidDeclaration
from onefold.processor import loading

_WIDTH = 8


def command(
    domains: Annotated[list[str] | None, typer.Argument(metavar="PIPELINE", help="Pipelines. Default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List pipelines with their topics and tables, without a server. A pipeline that does not load is named on stderr.

    Example: onefold ls runner
    """
    known = pipelines.found()
    listed: dict[str, dict[str, list[str]]] = {}
    problems = [] if domains else [*known.faults]
    for name in pipelines.checked(domains or pipelines.domains()):
        try:
            topology: Any = loading.load_topology(known[name])
        except InvalidDeclaration as fault:
            problems.append(str(fault))
            continue
        listed[name] = {
            "inputs": [*topology.inputs],
            "outputs": [*topology.outputs],
            "tables": merge_sql.written(known[name]),
        }
    for problem in problems:
        typer.echo(problem, err=True)
    if as_json:
        typer.echo(json.dumps(listed, indent=1))
        return
    for name, parts in listed.items():
        typer.echo(name)
        for part, found in parts.items():
            if found:
                typer.echo(f"  {part:{_WIDTH}} {', '.join(found)}")
