"""Assertions on errors by code and by the named objects; tests/suite/test_sentences.py checks the sentences."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from onefold.error_codes import Code, CodedError

_E = TypeVar("_E", bound=CodedError)
_PRINTED = re.compile(r"\berror (OF-\d+): ")


@contextmanager
def raises(kind: type[_E], code: Code, *objects: str) -> Iterator[pytest.ExceptionInfo[_E]]:
    """As `pytest.raises`, for an error with a code.

    Args:
        objects: names in the sentence: topics, offsets, settings, files.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert error.code is code, f"{error.code.name}: {error}"
    for named in objects:
        assert named in str(error), f"{named!r} is not in: {error}"


def code_of(printed: str, *objects: str) -> Code:
    """Code of an error that a command printed as text or JSON.

    Args:
        objects: names in the sentence.
    """
    for named in objects:
        assert named in printed, f"{named!r} is not in: {printed}"
    if printed.startswith("{"):
        return Code.of(json.loads(printed)["code"])
    found = _PRINTED.search(printed)
    assert found is not None, f"no error with a code: {printed!r}"
    return Code.of(found[1])
