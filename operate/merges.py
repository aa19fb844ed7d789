"""Which records make a table, and which tables a pipeline writes: read from the statements in a pipeline's sql/merge."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from onefold.pipelines import Pipeline

#: The columns in which a row says which record it came from.
ORIGIN = ("topic", "partition", "offset")

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
# What a statement of sql/merge writes to. `DO UPDATE SET` and `FOR UPDATE OF` name no table.
_NAME = r'(?:\w+|"[^"]+")'
_WRITES = re.compile(
    rf"\b(?:INSERT\s+INTO|MERGE\s+INTO|DELETE\s+FROM|(?<!DO\s)(?<!FOR\s)UPDATE)\s+(?:ONLY\s+)?((?:{_NAME}\.)?{_NAME})",
    re.IGNORECASE,
)
_INSERT = re.compile(r'\bINSERT\s+INTO\s+([\w".]+)(?:\s+AS\s+(\w+))?', re.IGNORECASE)
_UPDATE = re.compile(r"\bDO\s+UPDATE\s+SET\b", re.IGNORECASE)
_WORD = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|[\w.]+|.", re.DOTALL)


class Feed(NamedTuple):
    """What a topic does to a table.

    Attributes:
        topic: of the output records.
        reduced: what is merged are sums over a batch, and not its records.
        accumulated: the columns that are made of what the row had before: sums, and what several records fill in.
    """

    topic: str
    reduced: bool
    accumulated: frozenset[str]


def feeds(pipeline: Pipeline, table: str, topics: Iterable[str]) -> list[Feed]:
    """Those of a table, written `schema.name`, in order of their files.

    Args:
        topics: the pipeline's outputs.
    """
    outputs = set(topics)
    found = []
    for path in sorted((pipeline.sql / "merge").glob(f"{pipeline.name}.*.sql")):
        topic = path.stem if path.stem in outputs else path.stem.rpartition(".")[0]
        statement = _COMMENT.sub(" ", path.read_text(errors="replace", encoding="utf-8"))
        inserts = [*_INSERT.finditer(statement)]
        for insert, following in zip(inserts, [*inserts[1:], None], strict=True):
            if insert.group(1).replace('"', "").lower() != table.lower():
                continue
            part = statement[insert.end() : following.start() if following else None]
            alias = insert.group(2) or table.rpartition(".")[2]
            found.append(Feed(topic, path.stem != topic, frozenset(_accumulated(part, alias))))
    return found


def written(pipeline: Pipeline) -> list[str]:
    """The names of all tables that its statements write to, as they stand there."""
    files = (pipeline.sql / "merge").glob(f"{pipeline.name}.*.sql")
    return sorted(
        {
            name
            for file in files
            for name in _WRITES.findall(_COMMENT.sub("", file.read_text(errors="replace", encoding="utf-8")))
        }
    )


def _accumulated(part: str, alias: str) -> Iterator[str]:
    update = _UPDATE.search(part)
    if update is None:
        return
    stored = re.compile(rf"(?<![\w.]){re.escape(alias)}\.", re.IGNORECASE)
    for assignment in _assignments(part[update.end() :]):
        name, _, expression = assignment.partition("=")
        column = name.strip().strip('"')
        if column not in ORIGIN and stored.search(expression):
            yield column


def _assignments(text: str) -> Iterator[str]:
    """What stands between the commas that are in no brackets, up to what follows the list."""
    depth, piece = 0, ""
    for word in _WORD.findall(text):
        depth += (word == "(") - (word == ")")
        if depth < 0 or (depth == 0 and (word == ";" or word.upper() in ("WHERE", "RETURNING"))):
            break
        if word == "," and depth == 0:
            yield piece
            piece = ""
        else:
            piece += "''" if word.startswith("'") else word  # what a text says is no column
    yield piece
