"""Times and durations in options."""

from datetime import UTC, datetime, timedelta

import pytest

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate.times import duration, time_ms
from tests.support.coded import raises

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-02", 86_400_000),
        ("1970-01-01T01:00:01+01:00", 1_000),
        ("2h", int(NOW.timestamp() * 1000) - 7_200_000),
        ("90s", int(NOW.timestamp() * 1000) - 90_000),
    ],
)
def test_a_time_is_a_moment_or_so_long_ago(text: str, ms: int) -> None:
    assert time_ms(text, NOW) == ms


@pytest.mark.parametrize("text", ["yesterday", "", "999999999999d", "99999999999999999999999999s"])
def test_a_text_that_is_no_time_is_one_sentence(text: str) -> None:
    with raises(UserError, Code.ARGUMENT_WRONG, repr(text)) as refused:
        time_ms(text, NOW)
    assert refused.value.exit_code == USAGE


def test_a_duration_is_a_number_with_a_unit() -> None:
    assert [duration(text) for text in ("90s", "30m", "12h", "1d")] == [
        timedelta(seconds=90),
        timedelta(minutes=30),
        timedelta(hours=12),
        timedelta(days=1),
    ]


@pytest.mark.parametrize("text", ["soon", "-1d", "1.5h", "12", "", "999999999999d"])
def test_a_text_that_is_no_duration_is_one_sentence(text: str) -> None:
    with raises(UserError, Code.ARGUMENT_WRONG, repr(text)) as refused:
        duration(text)
    assert refused.value.exit_code == USAGE
