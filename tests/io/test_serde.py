"""What the codec refuses before it can touch a state."""

import pytest

from processor.apps import campaigns
from processor.core.errors import Rejected
from processor.core.values import Record
from processor.io import contracts
from processor.io.serde import AvroCodec

CODEC = AvroCodec(campaigns.TOPOLOGY, contracts.load())
SEND = r'{"id": 1, "email": "%s", "subject": "%s", "sent": 1, "date": "2021-12-01 12:00:00"}'


def decoded(text: str) -> object:
    return CODEC.decode(Record("campaigns.sends", 0, 0, None, text.encode()))


@pytest.mark.parametrize("texts", [(r"a\u0000", "b"), ("a", r"\u0000"), (r"\\\u0000", "b")])
def test_an_escaped_nul_in_any_text_is_refused(texts: tuple[str, str]) -> None:
    with pytest.raises(Rejected, match=r"campaigns\.Send"):
        decoded(SEND % texts)


def test_the_six_characters_that_only_look_like_nul_are_a_text() -> None:
    assert decoded(SEND % (r"a\\u0000", "b")).email == r"a\u0000"


def test_depth_is_counted_in_levels_outside_of_strings() -> None:
    nested = lambda levels: (SEND % ("a", "b"))[:-1] + ', "x": ' + "[" * levels + "]" * levels + "}"  # noqa: E731
    assert decoded(nested(63))
    with pytest.raises(Rejected, match="nested deeper than 64"):
        decoded(nested(64))
    assert decoded(SEND % ('\\"[{' * 100, "[" * 65))


def test_the_shortest_text_of_objects_that_is_too_deep_is_refused_for_that() -> None:
    nested = lambda levels: '{"":' * (levels - 1) + "{}" + "}" * (levels - 1)  # noqa: E731
    with pytest.raises(Rejected, match=r"not JSON of campaigns\.Send"):
        decoded(nested(64))
    with pytest.raises(Rejected, match="nested deeper than 64"):
        decoded(nested(65))


@pytest.mark.parametrize(
    "text",
    ["[" * 128, "[" * 64 + "]" * 64, '{"id": ' + "[" * 121, "{" * 320, '{"":' * 80, '{"id": 1, "x": ' + '{"":' * 75],
)
def test_a_text_too_short_to_be_deep_is_refused_whatever_its_brackets(text: str) -> None:
    assert len(text) <= (128 if "[" in text else 320)
    with pytest.raises(Rejected, match=r"not JSON of campaigns\.Send"):
        decoded(text)
