"""`onefold docs`: the pages of the documentation, which are part of the wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onefold import places
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE

PAGES = places.data("docs")


def command(
    page: Annotated[str | None, typer.Argument(help="The page, as operating. Default: list the pages.")] = None,
    path: Annotated[bool, typer.Option("--path", help="Print where the file is, not its text.")] = False,
) -> None:
    """Print a page of the documentation, or the list of pages.

    Example: onefold docs operating | less
    """
    pages = {file.stem: file for file in sorted(PAGES.glob("*.md"))}
    if page is None:
        for name, file in sorted(pages.items()):
            typer.echo(f"{name:<14}{title(file)}")
        return
    if page not in pages:
        raise UserError(
            Code.NAME_UNKNOWN, f"there is no page {page!r}", f"The pages are: {', '.join(sorted(pages))}.", USAGE
        )
    typer.echo(pages[page] if path else pages[page].read_text(encoding="utf-8"))


def title(file: Path) -> str:
    """The first heading of a page."""
    with file.open(encoding="utf-8") as lines:
        return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), file.stem)
