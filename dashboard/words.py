"""How the page writes numbers and moments: exact, and the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

MINUS = "\N{MINUS SIGN}"  # as wide as a digit, unlike the hyphen
DECIMALS_LEAST = 2
NONE = "\N{EM DASH}"


def exact(value: Decimal | None) -> str:
    """All digits of a decimal, in thousands, with two or more after the point: 1,234.50 or 0.000001."""
    if value is None:
        return NONE
    text = f"{abs(value):,f}"
    whole, _, fraction = text.partition(".")
    return f"{MINUS if value < 0 else ''}{whole}.{fraction.rstrip('0').ljust(DECIMALS_LEAST, '0')}"


def signed(value: Decimal | None) -> str:
    """The same with its sign, also when it is positive."""
    return f"+{exact(value)}" if value is not None and value > 0 else exact(value)


def whole(value: float | None) -> str:
    """A count, in thousands."""
    return NONE if value is None else f"{value:,.0f}".replace("-", MINUS)


def signed_whole(value: int | None) -> str:
    """The same with its sign, also when it is positive."""
    return f"+{whole(value)}" if value is not None and value > 0 else whole(value)


def seconds(value: float | None) -> str:
    """A duration, to a hundredth of a second below ten seconds."""
    return NONE if value is None else f"{value:.{2 if value < 10 else 0}f}\N{NARROW NO-BREAK SPACE}s"


def clock(moment: datetime | None) -> str:
    """The time of day, UTC."""
    return NONE if moment is None else f"{moment:%H:%M:%S}"


def label(name: str) -> str:
    """A column's name as a heading."""
    return name[:1].upper() + name[1:].replace("_", " ")


def query(items: Mapping[str, str]) -> str:
    """The part of an address behind the path, "" when there is nothing to say."""
    return f"?{urlencode(items)}" if items else ""


def templates() -> Environment:
    """The page's templates. Whatever comes from a table is escaped."""
    made = Environment(
        loader=PackageLoader("onefold.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        exact=exact,
        signed=signed,
        whole=whole,
        signed_whole=signed_whole,
        seconds=seconds,
        clock=clock,
        label=label,
        query=query,
    )
    return made
