"""`onefold check`: what is wrong with the pipelines, before anything is started."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onefold.exit_codes import USAGE
from onefold.operate import pipelines


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Pipelines to check; all of them if none is named.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the mistakes as JSON.")] = False,
) -> None:
    """Check a pipeline's declaration, handler, schemas, SQL files and verification model. No server has to run.

    Exit code 0: no mistake. 2: mistakes, one sentence each.

    Example: onefold check runner
    """
    from onefold.operate.check import check_all

    chosen = pipelines.checked(names) if names else None
    findings = {name: found for name, found in check_all(pipelines.found()).items() if chosen is None or name in chosen}
    if as_json:
        typer.echo(json.dumps(findings, indent=1))
    else:
        typer.echo("\n".join(_lines(findings)))
    raise typer.Exit(USAGE if any(findings.values()) else 0)


def _lines(findings: dict[str, list[str]]) -> list[str]:
    lines = list(findings.get("", []))
    for name, found in findings.items():
        if name:
            lines += [f"{name}: {sentence}" for sentence in found] or [f"{name}: nothing is wrong"]
    return lines
