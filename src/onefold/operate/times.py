"""Parse times and durations in options."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE

#: The help text of an option for a time.
WRITTEN = "2026-11-23T12:00, in UTC without a zone, or 90s, 15m, 2h, 3d ago"

_DURATION = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def time_ms(text: str, now: datetime) -> int:
    """Milliseconds since 1970 of a time: ISO 8601, in UTC without a zone, or 90s, 15m, 2h, 3d ago.

    Raises:
        UserError: invalid text (exit code 2).
    """
    try:
        ago = _duration(text)
        found = datetime.fromisoformat(text) if ago is None else now - ago
    except (ValueError, OverflowError):
        hint = "Write it as 2026-11-23, 2026-11-23T12:00, or as 90s, 15m, 2h, 3d ago."
        raise UserError(Code.ARGUMENT_WRONG, f"{text!r} is no time", hint, USAGE) from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def duration(text: str) -> timedelta:
    """The duration of "90s", "30m", "12h" or "1d". Raises UserError (exit code 2) for any other text."""
    try:
        found = _duration(text)
    except OverflowError:
        found = None
    if found is None:
        hint = "Write a whole number and one of s, m, h, d: 12h."
        raise UserError(Code.ARGUMENT_WRONG, f"{text!r} is no duration", hint, USAGE)
    return found


def _duration(text: str) -> timedelta | None:
    found = _DURATION.fullmatch(text)
    return timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else None
