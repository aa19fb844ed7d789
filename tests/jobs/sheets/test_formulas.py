"""Formulas: what they amount to, exactly; errors as values; cycles; and sizes that a stack would not stand."""

from collections.abc import Iterator, Mapping
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.jobs.apps.sheets.cells import Cell, Rect, Value, name_of, parse_cell
from onefold.jobs.apps.sheets.formulas import Error, Formulas, Result


class Grid:
    """Cells in memory."""

    def __init__(self, held: Mapping[Cell, Value]) -> None:
        self.held = dict(sorted(held.items()))

    def cells(self, rect: Rect) -> Iterator[tuple[Cell, Value]]:
        return ((cell, value) for cell, value in self.held.items() if rect.holds(cell))


def value(text: str) -> Value:
    """As a person types it."""
    if text.startswith("="):
        return Value("f", text)
    return Value("n" if text.replace(".", "").replace("-", "").isdigit() else "t", text)


def grid(**held: str) -> Grid:
    return Grid({parse_cell(name): value(text) for name, text in held.items()})


def shown(found: Grid, name: str) -> Result:
    cell = parse_cell(name)
    return Formulas(found).shown(cell, found.held.get(cell))


SHEET = {
    "A1": "1.1",
    "A2": "2.2",
    "A3": "text",
    "B1": "=A1+A2",
    "B2": "=1/0",
    "C1": "99999999999999999999999999999.999999999",
}


@pytest.mark.parametrize(
    ("formula", "wanted"),
    [
        ("=1+2*3", "7"),
        ("=(1+2)*3", "9"),
        ("=10-2-3", "5"),
        ("=12/2/3", "2"),
        ("=-2*-3", "6"),
        ("=--2", "2"),
        ("=+2", "2"),
        ("=-(1+2)", "-3"),
        ("=.5+1.", "1.5"),
        ("=1E2", "100"),
        ("=0.1+0.2", "0.3"),
        ("=A1+A2", "3.3"),
        ("=$A$1+A$2+$A1", "4.4"),
        ("=a1", "1.1"),
        ("= A1\n+ 1 ", "2.1"),
        ("=B1*2", "6.6"),
        ("=Z99", "0"),
        ("=Z99+1", "1"),
        ("=SUM(A1:A3)", "3.3"),
        ("=SUM(A3:A1)", "3.3"),
        ("=SUM(A1:B1, 1, A2*2, Z1:Z9)", "9.8"),
        ("=sum ( A1 )", "1.1"),
        ("=SUM(A3)", "0"),
        ("=SUM(C1, -C1, 1)", "1"),
        ("=C1-C1+0.000000001", "0.000000001"),
        ("=1/3*3-1", "-1E-60"),
    ],
)
def test_numbers(formula: str, wanted: str) -> None:
    assert shown(grid(**SHEET, D9=formula), "D9") == Decimal(wanted)


@pytest.mark.parametrize(
    ("formula", "wanted"),
    [
        ("=1/0", "#DIV/0!"),
        ("=1/Z9", "#DIV/0!"),
        ("=B2+A3", "#DIV/0!"),
        ("=A3+B2", "#VALUE!"),
        ("=A3+1", "#VALUE!"),
        ("=-A3", "#VALUE!"),
        ("=SUM((A3))", "#VALUE!"),
        ("=SUM(A1:B2)", "#DIV/0!"),
        ("=A1:A2", "#VALUE!"),
        ("=A1:A2+1", "#VALUE!"),
        ("=C1*10", "#VALUE!"),
        ("=1E99", "#VALUE!"),
        ("=A0", "#REF!"),
        ("=XFE1", "#REF!"),
        ("=A1048577+1", "#REF!"),
        ("=A99999999999", "#REF!"),
        ("=SUM(A1:A0)", "#REF!"),
        ("=AVERAGE(A1)", "#NAME?"),
        ("=IF(1)", "#NAME?"),
        ("=SUM()", "#NAME?"),
        ("=SUM", "#NAME?"),
        ("=A1B", "#NAME?"),
        ('="text"', "#NAME?"),
        ("=1+", "#NAME?"),
        ("=", "#NAME?"),
        ("=(1", "#NAME?"),
        ("=1 2", "#NAME?"),
        ("=__import__('os')", "#NAME?"),
        ("=Sheet2!A1", "#NAME?"),
    ],
)
def test_errors_are_values(formula: str, wanted: str) -> None:
    found = shown(grid(**SHEET, D9=formula), "D9")
    assert found == wanted
    assert isinstance(found, Error)


def test_a_text_is_handed_on_and_looks_like_an_error_at_most() -> None:
    found = grid(A1="#REF!", B1="=A1", C1="=B1+1")
    assert shown(found, "B1") == "#REF!"
    assert not isinstance(shown(found, "B1"), Error)
    assert shown(found, "C1") == Error("#VALUE!")


CYCLES = {
    "A1": "=B1+1",
    "B1": "=1/0+C1",
    "C1": "=SUM(A1:A2)",
    "D1": "=D1",
    "E1": "=A1+1/0",
    "E2": "=1/0+A1",
    "F1": "=SUM(E3:G3)",
    "F3": "=1+G9",
    "G9": "=SUM(F1:F2)",
    "H1": "=H2",
    "H2": "5",
}


@pytest.mark.parametrize("first", CYCLES)
def test_a_cycle_is_one_wherever_one_begins(first: str) -> None:
    """Its cells are, all of them; what is made of it is by the rule for errors."""
    found = grid(**CYCLES)
    formulas = Formulas(found)
    formulas.shown(parse_cell(first), found.held[parse_cell(first)])
    seen = {name_of(cell): formulas.shown(cell, held) for cell, held in found.held.items()}
    cycle = dict.fromkeys(["A1", "B1", "C1", "D1", "F1", "F3", "G9"], Error("#CYCLE!"))
    assert seen == cycle | {"E1": Error("#CYCLE!"), "E2": Error("#DIV/0!"), "H1": Decimal(5), "H2": Decimal(5)}


REFERENCES = st.lists(st.integers(0, 7), max_size=3)


@given(st.lists(REFERENCES, min_size=8, max_size=8), st.permutations(range(8)))
def test_cycles_are_those_of_the_graph(references: list[list[int]], order: list[int]) -> None:
    """By reachability; and numbers are those of plain recursion."""
    held = {
        (1, at + 1): value("=1" + "".join(f"+{name_of((1, to + 1))}" for to in of)) for at, of in enumerate(references)
    }
    reached = {at: set(of) for at, of in enumerate(references)}
    for _ in references:
        reached = {at: of.union(*(reached[to] for to in of)) for at, of in reached.items()}
    cyclic = {at for at, of in reached.items() if at in of}

    def expected(at: int) -> Result:
        if at in cyclic or reached[at] & cyclic:
            return Error("#CYCLE!")
        return Decimal(1) + sum(Decimal(str(expected(to))) for to in references[at])

    found = Grid(held)
    formulas = Formulas(found)
    for at in order:
        assert formulas.shown((1, at + 1), held[1, at + 1]) == expected(at)


@pytest.mark.long  # 6 s
@pytest.mark.slow  # seconds: so many formulas
@pytest.mark.parametrize(("length", "cycle"), [(20_000, False), (5_000, True)])
def test_a_long_chain_needs_no_deep_stack(length: int, cycle: bool) -> None:
    """Down a column; and a long cycle."""
    chain = {(row, 1): Value("f", f"=A{row + 1}+1") for row in range(1, length)} | {(length, 1): Value("n", "1")}
    by_row = dict(sorted(chain.items()))

    class Column(Grid):
        def cells(self, rect: Rect) -> Iterator[tuple[Cell, Value]]:
            rows = range(rect.top, min(rect.bottom, length) + 1) if rect.left == 1 else ()
            return (((row, 1), self.held[row, 1]) for row in rows)

    found = Column(by_row | {(length, 1): Value("f", "=A1")} if cycle else by_row)
    assert Formulas(found).shown((1, 1), found.held[1, 1]) == (Error("#CYCLE!") if cycle else length)


def test_brackets_and_signs_may_be_as_many_as_a_formula_has_room_for() -> None:
    for formula in ("=" + "(" * 4000 + "7" + ")" * 4000, "=" + "-" * 8000 + "7", "=0" + "+1" * 4000 + "-3993"):
        assert shown(grid(A1=formula), "A1") == 7


@pytest.mark.slow  # a second or two: a million cells
def test_a_sum_of_a_million_cells_is_exact() -> None:
    class Million(Grid):
        def cells(self, rect: Rect) -> Iterator[tuple[Cell, Value]]:
            return (
                ((row, 1), Value("n", "0.1"))
                for row in range(rect.top, min(rect.bottom, 1_000_000) + 1)
                if rect.left == 1
            )

    assert Formulas(Million({})).shown((1, 2), Value("f", "=SUM(A1:A1000000)")) == Decimal(100_000)
