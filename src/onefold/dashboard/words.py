"""Format numbers and times for the page: exact, and the same everywhere."""

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
THIN = "\N{NARROW NO-BREAK SPACE}"  # between a number and a unit


def exact(value: Decimal | None) -> str:
    """Format all digits of a decimal in thousands, with two or more after the point: 1,234.50 or 0.000001."""
    if value is None:
        return NONE
    text = f"{abs(value):,f}"
    whole, _, fraction = text.partition(".")
    return f"{MINUS if value < 0 else ''}{whole}.{fraction.rstrip('0').ljust(DECIMALS_LEAST, '0')}"


def signed(value: Decimal | None) -> str:
    """Format as `exact`, with a plus sign for positive values."""
    return f"+{exact(value)}" if value is not None and value > 0 else exact(value)


def whole(value: float | None) -> str:
    """Format a count in thousands."""
    return NONE if value is None else f"{value:,.0f}".replace("-", MINUS)


def signed_whole(value: int | None) -> str:
    """Format as `whole`, with a plus sign for positive values."""
    return f"+{whole(value)}" if value is not None and value > 0 else whole(value)


def seconds(value: float | None) -> str:
    """Format a duration, in hundredths of a second below ten seconds."""
    return NONE if value is None else f"{value:.{2 if value < 10 else 0}f}\N{NARROW NO-BREAK SPACE}s"


def counted(value: int) -> str:
    """Format a count that ends at COUNTED_MAX."""
    return f"over {whole(COUNTED_MAX)}" if value > COUNTED_MAX else whole(value)


def age(value: float) -> str:
    """Format a waiting time in the largest unit of which it has at least two."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if value >= 2 * size:
            return f"{value / size:,.0f}\N{NARROW NO-BREAK SPACE}{unit}"
    return f"{value:.0f}\N{NARROW NO-BREAK SPACE}s"


def waited(value: float | None) -> str:
    """Format the age of the oldest waiting record, in tenths of a second below two minutes."""
    if value is None:
        return "age unknown"
    return age(value) if value >= 120 else f"{value:.1f}\N{NARROW NO-BREAK SPACE}s"


def freshness(value: float | None) -> str:
    """Format the age of the oldest record that is not in the tables, with a dash if unknown."""
    return NONE if value is None else waited(value)


def clock(moment: datetime | None) -> str:
    """Time of day in UTC."""
    return NONE if moment is None else f"{moment:%H:%M:%S}"


def size(value: int | None) -> str:
    """Format a number of bytes in MB, KB or bytes."""
    for unit, factor in (("MB", 1_000_000), ("KB", 1_000)):
        if value is not None and value >= factor:
            return f"{value / factor:,.{1 if value < 10 * factor else 0}f}\N{NARROW NO-BREAK SPACE}{unit}"
    return f"{whole(value)}{'' if value is None else ' bytes'}"


def figure(value: Any) -> str:
    """Format a value of any query: numbers in thousands with all digits, times in UTC, anything else as text."""
    try:
        return _figure(value)
    except (OverflowError, RecursionError):  # a time at the end of the year 9999; JSON with a thousand levels
        return "(cannot be shown)"


def _figure(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC) if value.tzinfo else value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        text = f"{value:,f}" if isinstance(value, Decimal) else f"{value:,}"
        if isinstance(value, Decimal) and value.is_nan():  # NaN cannot be compared
            return text
        return f"{MINUS}{text[1:]}" if value < 0 else text
    return NONE if value is None else printable(str(value))


def label(name: str) -> str:
    """Heading for a column name."""
    return name[:1].upper() + name[1:].replace("_", " ")


def query(items: Mapping[str, str]) -> str:
    """Query part of an address; "" without items."""
    return f"?{urlencode(items)}" if items else ""


def printable(text: str | None) -> str:
    """Make an untrusted text printable, without control of the writing direction. The narrow space before a unit stays."""
    return "NULL" if text is None else THIN.join(of_anybody(part) for part in text.split(THIN))


def part(name: str) -> str:
    """Quote a name for the path of an address."""
    return quote(name, safe="")


def templates() -> Environment:
    """Template environment of the page. All values from tables are escaped."""
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
