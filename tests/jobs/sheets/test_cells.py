"""Cells: names, values, and one way to write a line."""

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.jobs.apps.sheets import cells
from onefold.jobs.apps.sheets.cells import NotCanonical, Rect, Value

CELLS = st.tuples(st.integers(1, cells.ROWS_MAX), st.integers(1, cells.COLS_MAX))
NUMBERS = st.decimals(Decimal(2 - 10**29), Decimal(10**29 - 2), places=9, allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
VALUES = st.one_of(
    st.none(),
    NUMBERS.map(cells.number_text).map(lambda text: Value("n", text)),
    TEXTS.map(lambda text: Value("t", text)),
    TEXTS.map(lambda text: Value("f", "=" + text)),
)


@given(CELLS)
def test_a_name_says_which_cell_it_is(cell: tuple[int, int]) -> None:
    assert cells.parse_cell(cells.name_of(cell)) == cell


def test_the_names_that_people_know() -> None:
    names = ["A1", "Z1", "AA1", "AZ9", "BA10", "ZZ1", "AAA1", "XFD1048576"]
    found = [cells.parse_cell(name) for name in names]
    assert found == [(1, 1), (1, 26), (1, 27), (9, 52), (10, 53), (1, 702), (1, 703), (1048576, 16384)]
    assert [cells.name_of(cell) for cell in found] == names


@pytest.mark.parametrize(
    "name", ["", "A", "1", "a1", "A0", "A01", "$A$1", "XFE1", "A1048577", "A1 ", "A1\n", "AAAA1", "Ä1"]
)
def test_what_is_no_cell(name: str) -> None:
    with pytest.raises(ValueError, match="is not a cell: write one like B7"):
        cells.parse_cell(name)


@given(CELLS, VALUES)
def test_a_line_is_the_same_both_ways(cell: tuple[int, int], value: Value | None) -> None:
    line = cells.line_of(cell, value)
    assert cells.parse_line(line) == (cell, value)
    assert cells.place_of(line) == cell
    assert json.loads(line) == [*cell, *(value or [None])]
    assert list(cells.lines_of(line + line)) == [(cell, line)] * 2


@given(NUMBERS, st.integers(0, 3))
def test_a_number_has_one_text(number: Decimal, zeros: int) -> None:
    text = cells.number_text(number)
    assert Decimal(text) == number
    assert cells.number_text(Decimal(text)) == text
    assert cells.number_text(Decimal(f"{number:f}" + "0" * zeros)) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [("12.500000000", "12.5"), ("-0.000000000", "0"), ("1E+2", "100"), ("-0.10", "-0.1"), ("0E-9", "0")],
)
def test_zeros_that_say_nothing_are_not_written(number: str, text: str) -> None:
    assert cells.number_text(Decimal(number)) == text


@pytest.mark.parametrize("number", ["1E+29", "0.0000000001", "NaN", "Infinity"])
def test_what_no_cell_can_hold_is_no_number(number: str) -> None:
    with pytest.raises(ValueError, match="is not a number with at most"):
        cells.number_text(Decimal(number))


@pytest.mark.parametrize(
    "line",
    [
        b'[1,1,"n","1"]',
        b'[1,1,"n","01"]\n',
        b'[1,1,"n","-0"]\n',
        b'[1,1,"n","1.10"]\n',
        b'[1,1,"n","1e1"]\n',
        b'[1,1,"n","0.0000000001"]\n',
        b'[1,1,"n",1]\n',
        b'[01,1,"n","1"]\n',
        b'[0,1,"n","1"]\n',
        b'[1,16385,"n","1"]\n',
        b'[1,1,"x","1"]\n',
        b'[1,1,"f","1"]\n',
        b'[1,1,"t","\\u00e9"]\n',
        b'[1,1,"t","\\u0000"]\n',
        b'[1,1,"t"]\n',
        b"[1,1,null,null]\n",
        b'[true,1,"t","a"]\n',
        b'[1.0,1,"t","a"]\n',
        b"[1,1,null]\n\n",
        b'{"a":1}\n',
        b"7\n",
    ],
)
def test_what_is_not_canonical_is_refused(line: bytes) -> None:
    with pytest.raises(NotCanonical):
        cells.parse_line(line)


def test_a_value_has_its_bounds() -> None:
    cells.check(Value("t", "x" * 32_767))
    cells.check(Value("f", "=" * 8_192))
    for kind, text in (("t", "x" * 32_768), ("f", "=" * 8_193), ("t", "\0"), ("t", "\ud800")):
        with pytest.raises(ValueError, match=r"more than|cannot be stored"):
            cells.check(Value(kind, text))


SMALL = st.tuples(st.integers(1, 5), st.integers(1, 5))


@given(SMALL, SMALL, SMALL, SMALL)
def test_a_chunk_meets_a_rectangle_when_one_of_its_cells_can_be_inside(
    one: tuple[int, int], other: tuple[int, int], first: tuple[int, int], last: tuple[int, int]
) -> None:
    rect = cells.parse_rect(f"{cells.name_of(one)}:{cells.name_of(other)}")
    assert rect == Rect(*map(min, one, other), *map(max, one, other))
    between = [(row, col) for row in range(1, 6) for col in range(1, 6) if first <= (row, col) <= last]
    if between:
        assert rect.meets(first, last) == any(map(rect.holds, between))
