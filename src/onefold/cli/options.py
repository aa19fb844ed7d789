"""Options that several commands have, with one meaning."""

from __future__ import annotations

from typing import Annotated

import typer

#: A dry run ends with `FAILED` if the command would do something, and with `OK` if nothing is to be done.
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what the command would do. Exit code 1: there is something.")
]
