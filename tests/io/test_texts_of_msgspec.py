"""What texts our readers of JSON take, beside msgspec's own readers of the same types (docs/decisions/kept-code.md)."""

import base64
import random
from datetime import date
from typing import Any
from uuid import UUID

import msgspec

from onefold.processor.io.logical import LOGICAL

TIMES = 20_000


def changed(text: str, values: random.Random, characters: str) -> str:
    """Half of the texts, with a character more, another one or one less."""
    if values.random() < 0.5 or not text:
        return text
    at = values.randrange(len(text))
    other: str = values.choice([*characters, ""])
    return text[:at] + other + text[at + values.randrange(2) :]


def both(kind: tuple[str, str], type_: type, text: str) -> tuple[Any, Any]:
    """What the two readers make of a text; None: they refuse it."""
    ours: Any
    theirs: Any
    try:
        ours = LOGICAL[kind].take(text)
    except ValueError:
        ours = None
    try:
        theirs = msgspec.json.decode(msgspec.json.encode(text), type=type_)
    except msgspec.ValidationError:
        theirs = None
    return ours, theirs


def test_both_take_the_same_dates() -> None:
    """Only ours takes a number of days as well, which contracts allow in JSON."""
    values = random.Random(1)
    taken = 0
    for _ in range(TIMES):
        year, month, day = values.choice([0, 1, 1900, 2024, 9999]), values.randrange(14), values.randrange(34)
        ours, theirs = both(("int", "date"), date, changed(f"{year:04}-{month:02}-{day:02}", values, "0-x T٣"))
        assert ours == theirs
        taken += ours is not None
    assert 0.2 * TIMES < taken < 0.8 * TIMES


def test_msgspec_takes_ids_without_hyphens_as_well() -> None:
    values = random.Random(2)
    bare = 0
    for _ in range(TIMES):
        text = str(UUID(int=values.getrandbits(128)))
        text = changed(text if values.random() < 0.9 else text.replace("-", ""), values, "0-xF{")
        ours, theirs = both(("string", "uuid"), UUID, text)
        if len(text) == 32:
            bare += theirs is not None
            assert ours is None
        else:
            assert ours == theirs
    assert bare


def test_msgspec_takes_base64_that_no_writer_makes() -> None:
    """With bits behind the last byte, so that several texts are one value."""
    values = random.Random(3)
    lenient = 0
    for _ in range(TIMES):
        text = changed(base64.b64encode(values.randbytes(values.randrange(6))).decode(), values, "A=-\n B")
        ours, theirs = both(("bytes", ""), bytes, text)
        if ours is None and theirs is not None:
            lenient += 1
            assert base64.b64encode(theirs).decode() != text
        else:
            assert ours == theirs
    assert lenient
