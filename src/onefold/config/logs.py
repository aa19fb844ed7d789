"""How long-running commands write their log: one line an event, for people or for programs, on stdout."""

from __future__ import annotations

import json
import logging
import os
import sys
from functools import cache
from typing import Any, Literal

import structlog

from onefold.printable import printable

Format = Literal["auto", "human", "json"]

# What each line in JSON has, as text.
_FIELDS = ("timestamp", "level", "event")
# Of those that only some have, what is printed as it is, line by line.
_BLOCKS = ("exception", "stack")


def configure(log_format: Format) -> None:
    """Sets up structlog and the standard library's logging alike.

    Args:
        log_format: see `for_people`.
    """
    common: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if for_people(log_format):
        last: list[Any] = [_people(in_color())]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # Libraries log through the standard library, all services through structlog: one shape for both.
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last], foreign_pre_chain=common
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs every call to the JVM
    structlog.configure(
        processors=[*common, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def for_people(log_format: Format) -> bool:
    """Whether lines on stdout are for people: "human" says so, "json" says no, and "auto" means that they are where stdout is a
    terminal.
    """
    return sys.stdout.isatty() if log_format == "auto" else log_format == "human"


def in_color() -> bool:
    """Whether stdout is a terminal whose user has nothing against colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def readable(line: str, colors: bool = False) -> list[str]:
    """A line of a log that `configure` has set up as JSON, as people have it on their terminal: several where it tells of an
    exception. Any other line is returned as it is. Never raises.
    """
    try:
        found = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or "exc_info" in found:  # that is what format_exc_info leaves nothing of
        return [line]
    if not all(isinstance(found.get(name), str) for name in _FIELDS):
        return [line]
    if not all(isinstance(found.get(name, ""), str) for name in _BLOCKS):
        return [line]
    shown = {name: printable(value, keep="\n\t") if isinstance(value, str) else value for name, value in found.items()}
    return _people(colors)(None, "", shown).split("\n")


@cache
def _people(colors: bool) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
