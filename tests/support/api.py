"""Generate docs/api.md, the page of the public names, from docstrings: `python -m tests.support.api` writes the page."""

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from tests.support.rooms import ROOT

PAGE = ROOT / "docs" / "api.md"
MODULES = ("onefold", "onefold.windows", "onefold.effects", "onefold.testing", "onefold.model", "onefold.view")

_HEAD = """# The public names

What a pipeline, its tests and its model import. Everything else may change with any version.
This page is made from the docstrings (`python -m tests.support.api`), and a test holds it to them.
"""


def page() -> str:
    """The expected page."""
    return "\n".join([_HEAD, *(line for module in MODULES for line in _module(module))]).rstrip() + "\n"


def _module(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    yield f"## {name}\n"
    yield f"{_text(module)}\n"
    for public in module.__all__:
        yield from _named(public, getattr(module, public))


def _named(name: str, found: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        yield f"```text\n{name} = {_value(found)}\n```\n"
        return
    if not (inspect.isclass(found) and issubclass(found, BaseException)):
        yield f"```python\n{name}{_signature(found)}\n```\n"
    yield f"{_text(found)}\n"
    if inspect.isclass(found):
        # With the inherited methods of a public base.
        bases = [found] if issubclass(found, BaseException) else [*found.__mro__]
        bases = [base for base in bases if base.__module__.startswith("onefold")]
        methods = {name: member for base in reversed(bases) for name, member in vars(base).items()}
        for method, function in methods.items():
            if inspect.isfunction(function) and not method.startswith("_") and function.__doc__:
                yield f"`{name}.{method}{_signature(function)}`\n"
                yield f"{_text(function)}\n"


def _signature(found: Any) -> str:
    try:
        text = str(inspect.signature(found))
    except ValueError:
        return "(...)"
    # Remove module prefixes of names, and addresses of functions as defaults.
    text = re.sub(r"\b(?:onefold|typing|collections\.abc|pathlib)(?:\.\w+)*\.(?=[A-Z])", "", text)
    text = re.sub(r"((?::|->) )'([^']*)'", r"\1\2", text)  # annotations that are strings at run time
    return re.sub(r"<function .*?>|<factory>", "...", text)


def _value(found: Any) -> str:
    return re.sub(r"\b(?:onefold|typing|collections\.abc)(?:\.\w+)*\.(?=[A-Z])", "", str(found))


def _text(found: Any) -> str:
    return inspect.cleandoc(inspect.getdoc(found) or "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
