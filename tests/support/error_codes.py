"""Generate docs/errors.md: error codes with exit codes. `python -m tests.support.error_codes` writes the page."""

import ast
from collections.abc import Iterator

from onefold import exit_codes
from onefold.error_codes import Code
from tests.lint.source import Source
from tests.support.rooms import ROOT

PAGE = ROOT / "docs" / "errors.md"
CATALOGUE = "onefold.error_codes"
_GROUPS = {
    1: "Command line, settings, files",
    2: "Kafka",
    3: "PostgreSQL",
    4: "Spark and Java",
    5: "Verification",
    6: "Records and handlers",
    7: "Pipelines and schemas",
    8: "State of processors",
    9: "Stack, containers, objects",
}
_HEAD = """# Error codes

Each error has a code, for its kind; the sentence behind the code names the objects, and what to do.

- A command ends with `error OF-210: Kafka has no topic runner.updates.dead` on stderr.
  With `--json`, stderr has an object with the fields `error`, `hint`, `code` and `exit_code`.
- A service writes the code of an error that ends or delays the work into its log, as `code`.
- `onefold verify --json` has `code` beside `reason` if the verdict is *unknown*. `onefold audit` logs it as `code`.
- A dead letter has the reason as a sentence, without a code.

The codes do not change between versions; the sentences may. Search the log for the code.
The [exit code](settings.md#exit-codes) says what a script or a supervisor can do.
*goes on* means that a service repeats the work by itself; a command or a first start ends with the number.
`verify` and `audit` end with 2, *unknown*, whatever the code.
*dead letter* means that the processor writes the record to the dead-letter topic.
This page is made from [error_codes.py](../src/onefold/error_codes.py), by `python -m tests.support.error_codes`.
"""
# Exit codes by class of error. A UserError carries the code itself.
_ENDS = {
    "CannotTell": str(exit_codes.UNKNOWN),
    "Misconfigured": str(exit_codes.USAGE),
    "Refused": str(exit_codes.REFUSED),
    "Forbidden": str(exit_codes.REFUSED),
    "Stopped": str(exit_codes.REFUSED),
    "Retriable": f"{exit_codes.UNAVAILABLE}, goes on",
    "Rejected": "dead letter",
    **dict.fromkeys(("Corrupted", "Damaged", "Abortable", "TooMuch", "Fenced", "Rewind"), "goes on"),
}


def page(source: Source) -> str:
    """The expected page."""
    ends = _ends(source)
    parts = [_HEAD]
    for hundred, title in _GROUPS.items():
        rows = (
            f"| {code} | {code.meaning} | {', '.join(sorted(ends.get(code.name, ()), key=_order))} |"
            for code in Code
            if code.number // 100 == hundred
        )
        parts.append(f"## {title}\n\n| code | meaning | ends with |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def used(source: Source) -> Iterator[str]:
    """Names of the codes that the product's errors use."""
    for name, path in source.product.items():
        if name != CATALOGUE:
            for node in source.nodes(path):
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Code":
                    yield node.attr


def _order(end: str) -> tuple[bool, int, str]:
    return not end.isdigit(), int(end) if end.isdigit() else 0, end


def _ends(source: Source) -> dict[str, set[str]]:
    """Exit codes by name of the error code."""
    found = {Code.REJECTED.name: {_ENDS["Rejected"]}}  # the code of an error without a code
    found |= {
        code.name: {_ENDS["CannotTell"]} for code in (Code.NO_VERDICT, Code.NOT_DRAINED)
    }  # codes of a verdict itself
    for name, path in source.product.items():
        if name != CATALOGUE and not name.startswith("onefold.processor.testing"):
            for node in source.nodes(path):
                for code, end in _pairs(node):
                    found.setdefault(code, set()).update(end.split(", "))
    return found


def _pairs(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Find a call that makes an error, or a tuple of a code and an exit code from which an error is made."""
    if isinstance(node, ast.Call):
        kind = ast.unparse(node.func).rpartition(".")[2]
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        for name in filter(None, map(_code, node.args)):
            if kind == "Trouble":
                refused = isinstance(given["refused"], ast.Constant) and given["refused"].value
                yield name, str(exit_codes.REFUSED if refused else exit_codes.UNAVAILABLE)
            elif kind in _ENDS:
                yield name, _ENDS[kind]
            elif kind == "UserError":
                end = node.args[3] if len(node.args) > 3 else given.get("exit_code")
                yield from ((name, number) for number in (_numbers(end) if end else [str(exit_codes.FAILED)]))
    if isinstance(node, ast.Tuple) and len(node.elts) == 2 and (code := _code(node.elts[0])):
        yield from ((code, number) for number in _numbers(node.elts[1]))


def _code(value: ast.expr) -> str | None:
    return value.attr if isinstance(value, ast.Attribute) and ast.unparse(value.value) == "Code" else None


def _numbers(value: ast.expr) -> Iterator[str]:
    """Exit codes named by an expression."""
    for node in ast.walk(value):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if isinstance(number := getattr(exit_codes, name, None), int):
            yield str(number)


if __name__ == "__main__":
    PAGE.write_text(page(Source()), encoding="utf-8")
