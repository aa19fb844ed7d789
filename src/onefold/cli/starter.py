"""The project that `onefold new` writes: the files of cli/template, with the pipeline's name in place of `pipename`.

In names of files, `dot_` stands for a dot, so that no tool takes a template's file for one of this repository.
"""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path

from onefold import pipelines
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE

TEMPLATE = Path(__file__).with_name("template")
PLACEHOLDER = "pipename"
# PostgreSQL truncates longer names, and two truncated names could be equal.
NAME_MAX = 63
# Words that PostgreSQL accepts as a schema's name only in quotes; categories T and R of `pg_get_keywords`.
_WORDS = """
all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation column
concurrently constraint create cross current_catalog current_date current_role current_schema current_time
current_timestamp current_user default deferrable desc distinct do else end except false fetch for foreign freeze from
full grant group having ilike in initially inner intersect into is isnull join lateral leading left like limit
localtime localtimestamp natural not notnull null offset on only or order outer overlaps placing primary references
returning right select session_user similar some symmetric system_user table tablesample then to trailing true union
unique user using variadic verbose when where window with
"""
RESERVED = frozenset(_WORDS.split())


def write(name: str, folder: Path) -> list[str]:
    """Write the project of a pipeline into a folder. Returns the relative paths of the files, sorted by template.

    Raises:
        UserError: the name is invalid, or the folder is not empty (exit code 2). No file is written.
    """
    _check_name(name, folder)
    files = {_target(path, name): path.read_text(encoding="utf-8").replace(PLACEHOLDER, name) for path in _templates()}
    _check_folder(folder, list(files))
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        with (folder / file).open("x", encoding="utf-8") as written:  # "x": never overwrites a file
            written.write(text)
    return list(files)


def _templates() -> list[Path]:
    found = (path for path in TEMPLATE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(found)


def _target(path: Path, name: str) -> str:
    parts = path.relative_to(TEMPLATE).as_posix().replace(PLACEHOLDER, name).split("/")
    return "/".join(f".{part.removeprefix('dot_')}" if part.startswith("dot_") else part for part in parts)


def _check_name(name: str, folder: Path) -> None:
    """Raise UserError unless the name is valid for a Python module, a schema in PostgreSQL and the start of topic names."""
    why = ""
    if not (name.isascii() and name.isidentifier() and name.islower()) or len(name) > NAME_MAX:
        why = f"it takes a small letter first, then small letters, digits and _, at most {NAME_MAX} of them"
    elif name.startswith("_"):
        why = "it takes a small letter first"
    elif name in RESERVED or name.startswith("pg_") or name in {"information_schema", "public"}:
        why = "PostgreSQL wants that name for itself"
    elif keyword.iskeyword(name) or keyword.issoftkeyword(name):
        why = "it is a word of Python"
    elif name == pipelines.ENGINE:
        why = "the schema and the topics of that name are the engine's own"
    elif name in {"avro", "sql"}:
        why = "the project has a folder of that name"
    elif (pipeline := pipelines.find(folder).pipelines.get(name)) is not None:
        why = f"that pipeline is declared in {pipeline.declared_in}"
    elif importlib.util.find_spec(name) is not None:
        why = "a module of that name is installed, and the project's own would hide it"
    if why:
        raise UserError(
            Code.NAME_TAKEN, f"{name!r} cannot be the name of a new pipeline: {why}", "Choose another name.", USAGE
        )


def _check_folder(folder: Path, files: list[str]) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(Code.NAME_TAKEN, f"{folder} is no folder", exit_code=USAGE)
    there = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    if visible := [name for name in there if not name.startswith(".")]:
        raise UserError(
            Code.NAME_TAKEN,
            f"{folder} is not empty: {visible[0]} is in it",
            "Choose another folder with --into FOLDER.",
            USAGE,
        )
    if taken := [file for file in files if (folder / file).exists()]:
        raise UserError(
            Code.NAME_TAKEN, f"{folder / taken[0]} is there already, and is not overwritten", exit_code=USAGE
        )
