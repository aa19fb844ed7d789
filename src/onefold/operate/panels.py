"""The panels of a pipeline: queries and charts of its page, declared in `sql/panels/<pipeline>.toml`.

    [[panel]]
    title = "The largest orders"
    kind = "bar"                    # stat, bar, table, line or rollup
    query = "SELECT customer, round(cents / 100.0, 2) AS total FROM orders.totals ORDER BY cents DESC LIMIT 10"
    units = {total = "EUR"}

A query is one statement that only reads. `docs/dashboard.md` describes the kinds.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from onefold.operate import merge_sql
from onefold.pipelines import InvalidDeclaration, Pipeline

FOLDER = "panels"
LEVELS_MAX = 6  # a comparison aggregates 2 ** levels sets of rows


Query = Annotated[str, AfterValidator(str.strip), AfterValidator(merge_sql.statement)]
Name = Annotated[str, Field(min_length=1)]


class _PanelTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Panel(_PanelTable):
    title: Name
    query: Query
    units: Mapping[str, str] = {}


class Stat(_Panel):
    """One row; each column is a figure. expected: a query for one row, with columns to compare with columns of equal name."""

    kind: Literal["stat"]
    expected: Query | None = None


class PanelRows(_Panel):
    """Rows of any columns; `bar`: a label and then a number, `line`: a time and then one or two numbers."""

    kind: Literal["bar", "table", "line"]


class Rollup(_Panel):
    """Sums at every level of a hierarchy.

    Attributes:
        query: gives a row for every combination of the levels; NULL means all, and the row of NULLs is the total.
        levels: columns, coarsest first.
        value, count: the columns of the sum, and of the number of summands.
        expected: gives the leaves with the same columns as reported by a producer, and `reported_at`.
    """

    kind: Literal["rollup"]
    levels: tuple[Name, ...] = Field(min_length=1, max_length=LEVELS_MAX)
    value: Name
    count: Name
    expected: Query | None = None


Panel = Stat | PanelRows | Rollup


class Panels(_PanelTable):
    """The panels of a pipeline, in the order of the page.

    Attributes:
        latency: a query for committed_at, sent_at and messages: the number of messages of a commit, by the producer's clock.
    """

    latency: Query | None = None
    panel: tuple[Annotated[Panel, Field(discriminator="kind")], ...] = ()

    @model_validator(mode="after")
    def _titles(self) -> Panels:
        titles = [panel.title for panel in self.panel]
        if twice := next((title for title in titles if titles.count(title) > 1), None):
            raise ValueError(f"two panels have the title {twice!r}")
        return self

    @property
    def rollups(self) -> Sequence[Rollup]:
        """The rollup panels, whose sums are compared."""
        return [panel for panel in self.panel if isinstance(panel, Rollup)]


def file_of(pipeline: Pipeline) -> Path:
    """The file with the panels of a pipeline."""
    return pipeline.sql / FOLDER / f"{pipeline.name}.toml"


def load(pipeline: Pipeline) -> Panels:
    """The panels of a pipeline; none without a file. Raises `InvalidDeclaration`: one sentence with file, panel and key."""
    file = file_of(pipeline)
    try:
        changed = file.stat().st_mtime_ns
    except FileNotFoundError:
        return Panels()
    except OSError as error:
        raise InvalidDeclaration(f"{file}: {error.strerror}") from None
    return _read(file, changed)


@functools.lru_cache
def _read(file: Path, changed: int) -> Panels:
    """The panels in a file. changed: the time of its last change, so that an edited file is read again."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidDeclaration(f"{file}: {error}") from None
    try:
        return Panels.model_validate(found)
    except ValidationError as error:
        raise InvalidDeclaration(f"{file}: {_sentence(error.errors()[0], found)}") from None


def _sentence(problem: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The panel, the key, and the fault."""
    place = [*problem["loc"][:2], *problem["loc"][3:]]  # without the kind of the panel
    what = _WORDS.get(problem["type"]) or re.sub(r"^(Value error, |Input )", "", problem["msg"])
    if place == ["panel"]:
        what += ": write [[panel]]"
    if len(place) < 2 or place[0] != "panel":
        return f"{'.'.join(map(str, place))} {what}".strip()
    table = found["panel"][place[1]]
    title = table.get("title") if isinstance(table, dict) else None
    panel = f"panel {place[1] + 1}{f' ({title})' if title else ''}"
    key = ".".join(map(str, place[2:])) or ("kind" if problem["type"].startswith("union_tag") else "")
    return f"{panel}: {key} {what}" if key else f"{panel} {what}"


_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not known",
    "string_type": "has to be a text",
    "string_too_short": "is empty",
    "tuple_type": "has to be a list",
    "too_short": "is empty",
    "too_long": f"has more than {LEVELS_MAX} names",
    "dict_type": "has to be a table of column and unit",
    "model_attributes_type": "has to be a table",
    "union_tag_not_found": "is missing",
    "union_tag_invalid": "has to be stat, bar, table, line or rollup",
}
