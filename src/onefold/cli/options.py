"""Options that several commands share, with the same meaning."""

from __future__ import annotations

from typing import Annotated

import typer

#: The exit code of a dry run is `FAILED` if the command would change data, else `OK`.
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what the command would do. Exit code 1: there is something.")
]
