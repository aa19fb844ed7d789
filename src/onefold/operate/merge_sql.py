"""Find the tables that the statements in a pipeline's sql/merge write to.

The statements are split by PostgreSQL's lexical rules. A verb counts only at the beginning of a statement: at the start, after
a semicolon, in a common table expression, and after the list of common table expressions. EXPLAIN is no alternative: it needs
the columns of `:stage` (known only to Spark for a reduction), existing tables, and a login with write rights. The writes of
functions, triggers and rules do not appear in the statements.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from onefold.pipelines import Pipeline

#: The columns with the source record of a row.
ORIGIN = ("topic", "partition", "offset")

_NAME = r'(?:[uU]&)?"(?:[^"]|"")*"'
_WORD = r"[\w$\x80-\U0010ffff]+"
_SKIPPED = r"""--[^\n\r]*|[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$"""
_PIECE = re.compile(rf"(?P<skipped>{_SKIPPED}|\s+)|(?P<comment>/\*)|(?P<piece>{_NAME}|{_WORD}|.)", re.DOTALL)
_COMMENT_MARK = re.compile(r"/\*|\*/")
# The word between a verb and the name of its target table.
_VERBS = {"INSERT": "INTO", "MERGE": "INTO", "DELETE": "FROM", "UPDATE": ""}
# Further actions of a statement: INSERT ... ON CONFLICT DO UPDATE, and MERGE ... WHEN MATCHED THEN DELETE.
_ACTIONS = {"DO": ("UPDATE",), "THEN": ("INSERT", "UPDATE", "DELETE")}


def written(pipeline: Pipeline) -> list[str]:
    """List the target tables of the statements, named as in the statements."""
    return sorted({name for file in _files(pipeline) for name in tables(file.read_text("utf-8", "replace"))})


def privileges(pipeline: Pipeline) -> list[tuple[str, str]]:
    """List the target tables of the statements, each with a privilege that PostgreSQL requires."""
    found = {one for file in _files(pipeline) for one in _written(file.read_text("utf-8", "replace"))}
    return sorted((name, verb) for name, verb in found if verb != "MERGE")


def feeding(pipeline: Pipeline, table: str, topics: Collection[str]) -> list[str]:
    """List the topics, of `topics`, whose merge writes to `table`, in order of the files."""
    found = [
        file.stem if file.stem in topics else file.stem.rpartition(".")[0]
        for file in _files(pipeline)
        if parts(table) in map(parts, tables(file.read_text("utf-8", "replace")))
    ]
    return list(dict.fromkeys(found))


def parts(name: str) -> tuple[str, ...]:
    """Split a name in a statement into schema and table, spelled as in the catalogue."""
    return tuple(
        part[1:-1].replace('""', '"') if part.startswith('"') else _folded(part)
        for part in re.findall(rf"{_NAME}|{_WORD}", name)
    )


def _files(pipeline: Pipeline) -> list[Path]:
    return sorted((pipeline.sql / "merge").glob(f"{pipeline.name}.*.sql"))


def tables(statements: str) -> Iterator[str]:
    """Yield the names of the target tables, in order."""
    yield from dict.fromkeys(name for name, _ in _written(statements))


def statement(text: str) -> str:
    """Return the only statement of a text, without the final semicolon. Raises ValueError for none or several."""
    placed = list(_placed(text))
    if placed and placed[-1][1] == ";":
        at, _ = placed.pop()
        text = text[:at] + text[at + 1 :]
    if not placed:
        raise ValueError("is empty")
    if ";" in (piece for _, piece in placed):
        raise ValueError("is more than one statement: remove the semicolon")
    return text


def _written(statements: str) -> Iterator[tuple[str, str]]:
    """Yield each target table with the action on the table, in order."""
    pieces = [*_pieces(statements), "", "", ""]
    begins = [True]  # per bracket: whether a statement begins here, or its list of common table expressions continues
    targets = [""]  # per bracket: the target table of its statement
    before = ""
    for number, piece in enumerate(pieces):
        word = piece.upper()
        if piece == "(":
            begins.append(before in ("AS", "MATERIALIZED"))
            targets.append("")
        elif piece == ")" and len(begins) > 1:
            begins.pop()
            targets.pop()
        elif piece == ";":
            begins, targets = [True], [""]
        elif targets[-1] and word in _ACTIONS.get(before, ()):
            yield targets[-1], word
        elif begins[-1] and before not in ("WITH", "RECURSIVE", ","):
            if word in _VERBS and _VERBS[word] in ("", pieces[number + 1].upper()):
                begins[-1] = False
                targets[-1] = _name(pieces, number + 1 + bool(_VERBS[word]))
                yield targets[-1], word
            elif word in ("SELECT", "VALUES", "TABLE") or (before in ("", ";", "(") and word != "WITH"):
                begins[-1] = False
        before = word


def _name(pieces: list[str], at: int) -> str:
    at += pieces[at].upper() == "ONLY"
    at += pieces[at] == "("  # ONLY (name)
    name = _folded(pieces[at])
    while pieces[at + 1] == ".":
        at += 2
        name += f".{_folded(pieces[at])}"
    return name


def _folded(part: str) -> str:
    return part if part.endswith('"') else "".join(char.lower() if char.isascii() else char for char in part)


def _pieces(text: str) -> Iterator[str]:
    return (piece for _, piece in _placed(text))


def _placed(text: str) -> Iterator[tuple[int, str]]:
    """Yield names, words and other characters, each with its position. Texts become '' and comments vanish."""
    at = 0
    while (found := _PIECE.match(text, at)) is not None:
        at = found.end()
        if found["comment"]:
            at = _after_comment(text, at)
        elif found["piece"]:
            yield found.start(), found["piece"]
        elif not found["skipped"].isspace() and not found["skipped"].startswith("--"):
            yield found.start(), "''"


def _after_comment(text: str, at: int) -> int:
    """Find the end of a comment. Comments may be nested."""
    depth = 1
    while depth and (mark := _COMMENT_MARK.search(text, at)) is not None:
        depth += 1 if mark.group() == "/*" else -1
        at = mark.end()
    return at if depth == 0 else len(text)
