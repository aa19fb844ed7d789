"""`onefold kubernetes`: the resources of the pipelines, as a base for kustomize."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onefold.config.errors import UserError
from onefold.config.settings import INSTANCES_MAX, load
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate import pipelines
from onefold.pipelines import InvalidDeclaration


def command(
    folder: Annotated[Path, typer.Argument(help="The folder that the files are written to.")],
    domains: Annotated[list[str] | None, typer.Argument(metavar="PIPELINE", help="Pipelines. Default: all.")] = None,
    processors: Annotated[
        int, typer.Option(min=1, max=INSTANCES_MAX, help="Processors of each pipeline that has no replicas.")
    ] = 2,
    strimzi: Annotated[
        str | None, typer.Option(help="The name of the Kafka resource of Strimzi: writes KafkaTopic resources, too.")
    ] = None,
) -> None:
    """Write Kubernetes resources of pipelines, derived from the declarations and from your settings: a base for kustomize.
    The resources contain no secrets. The command needs no server.

    Example: ONEFOLD_BOOTSTRAP_SERVERS=kafka:9092 onefold kubernetes deploy/base runner
    """
    import yaml  # type: ignore[import-untyped]  # PyYAML has no types

    from onefold.operate.kubernetes import HEADER, Base

    found = pipelines.found().pipelines
    names = pipelines.checked(domains or pipelines.domains())
    base = Base(load(), [found[name] for name in names], processors, strimzi)
    try:
        files = base.files()
    except InvalidDeclaration as fault:
        raise UserError(Code.PIPELINE_WRONG, str(fault), exit_code=USAGE) from None
    for name in files:
        _check_ours(folder / name, HEADER)
    try:
        for name, resources in files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(HEADER + yaml.safe_dump_all(resources, sort_keys=False, width=128), encoding="utf-8")
    except OSError as error:
        raise UserError(Code.FILE_UNUSABLE, f"{folder} cannot be written: {error.strerror}", exit_code=USAGE) from None
    if left_out := base.left_out():
        typer.echo(f"Not in them, as logins and settings of this machine: {', '.join(left_out)}.")
    typer.echo(f"{len(files)} files written to {folder}. Next: `onefold docs kubernetes`, the Secrets and an overlay.")


def _check_ours(file: Path, header: str) -> None:
    """Raise UserError if `onefold kubernetes` did not write the file, before any file is written."""
    try:
        if file.exists() and not file.read_text(encoding="utf-8", errors="replace").startswith(header):
            hint = "Name another folder, or move the file away."
            raise UserError(Code.FILE_UNUSABLE, f"{file} was not made by `onefold kubernetes`", hint, USAGE)
    except OSError as error:
        raise UserError(Code.FILE_UNUSABLE, f"{file} cannot be read: {error.strerror}", exit_code=USAGE) from None
