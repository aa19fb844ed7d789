"""`onefold dashboard`: the page with the live tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from onefold.config import allowed_hosts, logs
from onefold.config.errors import UserError
from onefold.config.settings import load
from onefold.error_codes import Code
from onefold.exit_codes import USAGE


def command(
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the page; 0 picks a free one.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    expose: Annotated[
        bool, typer.Option("--expose", help="Let other machines reach the page without a token.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="A name beside localhost under which the page answers; may be given several times."),
    ] = None,
) -> None:
    """Serve the dashboard until SIGTERM or Ctrl-C: the tables, live, and how healthy each pipeline is. The dashboard only reads.

    `onefold up` serves the dashboard too; `onefold status` shows its address.

    Example: onefold dashboard --port 8080
    """
    settings = load()
    from onefold.dashboard import serve  # imports a web server, which `--help` does not need

    if not serve.is_local(host) and not expose and not settings.dashboard_token:
        raise UserError(
            Code.EXPOSED,
            f"{host} can be reached from other machines, and the page asks for no token",
            "Set ONEFOLD_DASHBOARD_TOKEN_FILE; or add --expose if a proxy asks for a login, or all may see the page.",
            USAGE,
        )
    try:
        names = allowed_hosts.names(",".join([*(allowed_host or ()), settings.dashboard_hosts]))
    except ValueError as error:
        raise UserError(Code.ARGUMENT_WRONG, f"--allowed-host cannot be used: {error}", exit_code=USAGE) from None
    dsn = settings.dashboard_dsn or settings.postgres()
    listener = serve.listen(host, settings.dashboard_port if port is None else port)
    logs.configure(settings.log_format)
    typer.echo(f"The dashboard is on {serve.address(listener)}")
    status = os.environ.get("ONEFOLD_STATUS_FILE")
    serve.run(settings, dsn, listener, names, Path(status) if status else None)
