"""The console for tables of commands."""

from __future__ import annotations

import os

from rich.console import Console


def console() -> Console:
    """A console on stdout. With NO_COLOR in the environment (https://no-color.org), writes no escape sequence: rich alone would
    still write bold type.
    """
    return Console(highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")
