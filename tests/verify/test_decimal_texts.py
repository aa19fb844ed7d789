"""Which texts are decimals, written down by hand: the processor and the verifier take these and no others.

Both leave it to Python's `decimal`, so a comparison of both alone would not notice another rule of a later Python.
"""

import json
from decimal import Decimal

import pytest

from onefold.workloads import trades
from tests.verify.test_agreement import TEXTS, judged, processed

TAKEN = {
    "12.50": Decimal((0, (1, 2, 5, 0), -2)),
    "+1": Decimal(1),
    "-0.5": Decimal((1, (5,), -1)),
    ".5": Decimal((0, (5,), -1)),
    "5.": Decimal(5),
    "007": Decimal(7),
    "1e3": Decimal((0, (1,), 3)),
    "1E+3": Decimal((0, (1,), 3)),
    "1e-3": Decimal((0, (1,), -3)),
    # white space around it, and underscores anywhere
    " 12 ": Decimal(12),
    "\t1\n": Decimal(1),
    "1_000": Decimal(1000),
    "_1__0_": Decimal(10),
    "1e1_0": Decimal((0, (1,), 10)),
    # digits of any script
    "\N{ARABIC-INDIC DIGIT THREE}": Decimal(3),
    "\N{FULLWIDTH DIGIT ONE}\N{FULLWIDTH DIGIT TWO}": Decimal(12),
    # and what is no number: a rule of the pipeline has to refuse it
    "NaN": Decimal("NaN"),
    "-inf": Decimal("-Infinity"),
    "Infinity": Decimal("Infinity"),
}
REFUSED = ["", " ", "1,5", "0x1", "1e", "e1", "--1", "+-1", "1 2", ".", "1.2.3", "\N{VULGAR FRACTION ONE HALF}",
           "\N{MINUS SIGN}1", "1/2", "one"]  # fmt: skip


def read(text: str) -> tuple[object, object]:
    """What the processor and what the verifier make of it; None: a dead letter."""
    trade = {**json.loads(TEXTS[trades.TOPIC][0]), "Value": text}
    both = (decode(trades.TOPIC, json.dumps(trade).encode()) for decode in (processed, judged))
    first, second = (found and found["Value"].as_tuple() for found in both)
    return first, second


@pytest.mark.parametrize("text", TAKEN)
def test_a_text_that_is_a_decimal(text: str) -> None:
    assert read(text) == (TAKEN[text].as_tuple(), TAKEN[text].as_tuple())


@pytest.mark.parametrize("text", REFUSED)
def test_a_text_that_is_none(text: str) -> None:
    assert read(text) == (None, None)
