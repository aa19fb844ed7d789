"""What commands print tables on."""

from __future__ import annotations

import os

from rich.console import Console


def console() -> Console:
    """On stdout. With NO_COLOR in the environment, as https://no-color.org has it, no escape sequence is written at all: rich
    itself leaves bold type.
    """
    return Console(highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")
