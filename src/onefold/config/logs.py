"""Logging of long-running commands to stdout: a line per event, as text for people or as JSON for programs."""

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

# The text fields of each JSON line.
_FIELDS = ("timestamp", "level", "event")
# Optional fields of several lines, printed unchanged.
_BLOCKS = ("exception", "stack")


def configure(log_format: Format) -> None:
    """Configure structlog and the standard library's logging with the same format.

    Args:
        log_format: See `for_people`.
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
    # Libraries log through the standard library, services through structlog. Both get the same format.
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
    """Whether log lines are for people: always for "human", never for "json", and on a terminal for "auto"."""
    return sys.stdout.isatty() if log_format == "auto" else log_format == "human"


def in_color() -> bool:
    """Whether stdout is a terminal and the variable NO_COLOR is unset or empty."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def readable(line: str, colors: bool = False) -> list[str]:
    """Convert a JSON log line to the lines for people; several lines for an exception.

    Any other line is returned unchanged. Never raises.
    """
    try:
        found = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or "exc_info" in found:  # format_exc_info removes exc_info from each of our lines
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
