"""How the page writes numbers and moments: exact, and the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from onefold.dashboard.jobs import COUNTED_MAX
from onefold.printable import printable as of_anybody
from onefold.printable import sentence

MINUS = "\N{MINUS SIGN}"  # as wide as a digit, unlike the hyphen
DECIMALS_LEAST = 2
NONE = "\N{EM DASH}"
THIN = "\N{NARROW NO-BREAK SPACE}"  # between a number and its unit


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


def counted(value: int) -> str:
    """A count that ends at COUNTED_MAX."""
    return f"over {whole(COUNTED_MAX)}" if value > COUNTED_MAX else whole(value)


def age(value: float) -> str:
    """How long something has waited, in the unit that says it best."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if value >= 2 * size:
            return f"{value / size:,.0f}\N{NARROW NO-BREAK SPACE}{unit}"
    return f"{value:.0f}\N{NARROW NO-BREAK SPACE}s"


def waited(value: float | None) -> str:
    """How old the oldest is of what waits: to a tenth of a second while that is long."""
    if value is None:
        return "age unknown"
    return age(value) if value >= 120 else f"{value:.1f}\N{NARROW NO-BREAK SPACE}s"


def freshness(value: float | None) -> str:
    """How old the oldest record is that is not in the tables; nothing where it is not known."""
    return NONE if value is None else waited(value)


def clock(moment: datetime | None) -> str:
    """The time of day, UTC."""
    return NONE if moment is None else f"{moment:%H:%M:%S}"


def size(value: int | None) -> str:
    """A number of bytes, in the unit that says it best."""
    for unit, factor in (("MB", 1_000_000), ("KB", 1_000)):
        if value is not None and value >= factor:
            return f"{value / factor:,.{1 if value < 10 * factor else 0}f}\N{NARROW NO-BREAK SPACE}{unit}"
    return f"{whole(value)}{'' if value is None else ' bytes'}"


def figure(value: Any) -> str:
    """The value of a column of any query: numbers in thousands, with the digits that they have; moments in UTC; else a text."""
    try:
        return _figure(value)
    except (OverflowError, RecursionError):  # a moment at the end of the year 9999; JSON with a thousand levels
        return "(cannot be shown)"


def _figure(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC) if value.tzinfo else value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        text = f"{value:,f}" if isinstance(value, Decimal) else f"{value:,}"
        if isinstance(value, Decimal) and value.is_nan():  # it compares with nothing
            return text
        return f"{MINUS}{text[1:]}" if value < 0 else text
    return NONE if value is None else printable(str(value))


def label(name: str) -> str:
    """A column's name as a heading."""
    return name[:1].upper() + name[1:].replace("_", " ")


def query(items: Mapping[str, str]) -> str:
    """The part of an address behind the path, "" when there is nothing to say."""
    return f"?{urlencode(items)}" if items else ""


def printable(text: str | None) -> str:
    """A text of anybody's, in which nothing turns the writing around. Our own space before a unit stays."""
    return "NULL" if text is None else THIN.join(of_anybody(part) for part in text.split(THIN))


def part(name: str) -> str:
    """A name as a part of an address's path."""
    return quote(name, safe="")


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
        figure=figure,
        signed=signed,
        whole=whole,
        signed_whole=signed_whole,
        seconds=seconds,
        counted=counted,
        age=age,
        waited=waited,
        freshness=freshness,
        clock=clock,
        label=label,
        bytes=size,
        query=query,
        part=part,
        sentence=sentence,
        printable=printable,
    )
    return made
