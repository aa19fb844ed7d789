"""Run the site until a signal, and update the status file."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import uvicorn

from onefold import status_file
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.dashboard.explained import Explainer
from onefold.dashboard.metrics_endpoint import Totals
from onefold.dashboard.observer import Observer
from onefold.dashboard.reader import DatabaseReader
from onefold.dashboard.watcher import Watcher
from onefold.dashboard.web import application
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, OK
from onefold.operate import pipelines

STATUS_EVERY_S = 1.0
STOP_S = 2  # for open streams, which lose no data at the end
ENGINE_SCHEMA = "onefold"


def is_local(host: str) -> bool:
    """Whether `host` is reachable from this machine only."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Listen on a port; 0 picks a free one. Raises UserError if the port cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            Code.PORT_TAKEN, f"{host}:{port} cannot be listened on: {reason}", "Choose another port, or 0."
        ) from None


def address(listener: socket.socket) -> str:
    """URL of the page behind a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def run(settings: Settings, dsn: str, listener: socket.socket, names: list[str], status_file: Path | None) -> None:
    """Serve until SIGTERM or Ctrl-C, and then end the process with code 0. Does not return.

    An unexpected error ends the process with a traceback and code 1.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)  # uvicorn raises the signal again after its shutdown
    asyncio.run(_serve(settings, dsn, listener, names, status_file))


async def _serve(
    settings: Settings, dsn: str, listener: socket.socket, names: list[str], status_file: Path | None
) -> NoReturn:
    try:
        await _serve_until_asked(settings, dsn, listener, names, status_file)
    except Exception:  # noqa: BLE001 - printed, and ends the process
        traceback.print_exc()
        _end(FAILED)
    _end(OK)


async def _serve_until_asked(
    settings: Settings, dsn: str, listener: socket.socket, names: list[str], status_file: Path | None
) -> None:
    snapshots, tables = DatabaseReader(dsn), DatabaseReader(dsn)  # paging through a large table delays no snapshot
    observer = Observer(settings, dsn)
    watcher = Watcher(snapshots, observer)
    explainer = Explainer(settings, dsn)
    totals = Totals(observer, settings.stall_s)
    schemas = [*pipelines.domains(), ENGINE_SCHEMA]
    site = application(watcher, tables, dsn, explainer, totals, schemas, names, settings)
    config = uvicorn.Config(
        site,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=STOP_S,
    )
    async with asyncio.TaskGroup() as together:  # an error of the watcher ends the program
        beside = [together.create_task(one.run()) for one in (watcher, observer)]
        if status_file is not None:
            beside.append(together.create_task(_keep_status(status_file, f"showing on {address(listener)}")))
        await uvicorn.Server(config).serve(sockets=[listener])
        for task in beside:
            task.cancel()
    for reader in (snapshots, tables):
        await reader.close()


def _end(code: int) -> NoReturn:
    """End the process without waiting for threads, which may wait for a silent server without end. The threads only read."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _keep_status(file: Path, detail: str) -> None:
    while True:
        with suppress(OSError):  # a full disk shows as a stale file, and the page needs no file
            status_file.write(file, "running", detail, time.time())
        await asyncio.sleep(STATUS_EVERY_S)
