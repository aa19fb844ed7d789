"""The public names: all of them explained, and the page of them true."""

import importlib
import inspect

import pytest

from tests.support import api


def test_the_page_of_the_public_names_is_what_their_docstrings_say() -> None:
    assert api.PAGE.read_text(encoding="utf-8") == api.page(), "make it again with: python -m tests.support.api"


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in api.MODULES for name in importlib.import_module(module).__all__]
)
def test_every_public_name_says_what_it_is(module: str, name: str) -> None:
    found = getattr(importlib.import_module(module), name)
    if inspect.isclass(found) or inspect.isfunction(found):
        # A dataclass without a docstring has its own signature for one.
        assert found.__doc__
        assert not found.__doc__.startswith(f"{found.__name__}(")
