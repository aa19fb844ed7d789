"""Formulas, evaluated on reading a sheet. The log stores only the formula.

Every value is a decimal of up to 60 digits, so sums of the log's numbers are exact. Quotients and longer products are rounded
to 60 digits. A result with more than 29 digits before the point exceeds a cell and is #VALUE!, as is arithmetic with a text.
SUM ignores texts in references. An empty cell is 0. Errors are values: a formula with an error yields the leftmost error. All
cells of a cycle are #CYCLE!, and so are formulas with these cells.
"""

from collections.abc import Iterator
from decimal import Context, Decimal
from typing import NamedTuple, Protocol

from onefold.jobs.apps.sheets.cells import Cell, Rect, Value
from onefold.jobs.apps.sheets.formula_language import CYCLE, DIV0, VALUE, FormulaStep, Steps, parse

# A number of the log has 38 digits, so a sum of 10^22 numbers is exact. No traps, because `_checked` tests each result.
_CONTEXT = Context(prec=60, traps=[])
_DIGITS_MAX = 29
# A lookup of a single cell fetches a tile of cells, because chains of references mostly follow a row or a column.
_TILE_ROWS, _TILE_COLS = 256, 32
# A range of at most this number of tiles is also looked up in tiles. A larger range is streamed and not cached.
_TILES_OF_RANGE = 16


class Error(str):
    """An error value, such as "#DIV/0!", as distinct from a text."""


Result = Decimal | str | Error | None
"""What a cell shows: a number, a text, an error; None: it holds nothing."""


class CellSource(Protocol):
    """The cells of a sheet."""

    def cells(self, rect: Rect) -> Iterator[tuple[Cell, Value]]:
        """The nonempty cells of a rectangle, in order."""


class _Sum(NamedTuple):
    """A range for SUM: the sum of its numbers, and the cells with formulas, in order."""

    numbers: Decimal
    formulas: tuple[Cell, ...]


class _Node:
    """A formula under evaluation, a node of Tarjan's algorithm."""

    def __init__(self, number: int, steps: Steps, needs: list[Cell]) -> None:
        self.number = self.low = number
        self.steps, self.needs, self.next, self.open = steps, needs, 0, True


class Formulas:
    """The values of a sheet's cells."""

    def __init__(self, source: CellSource) -> None:
        self._source = source
        self._tiles: dict[tuple[int, int], dict[Cell, Value]] = {}
        self._sums: dict[Rect, _Sum] = {}
        self._results: dict[Cell, Result] = {}

    def shown(self, cell: Cell, value: Value | None) -> Result:
        """The displayed value of a cell with this content."""
        if value is None or value.kind == "t":
            return value and value.text
        if value.kind == "n":
            return Decimal(value.text)
        if cell not in self._results:
            self._evaluate(cell, value)
        return self._results[cell]

    def _evaluate(self, cell: Cell, value: Value) -> None:
        """Evaluate a formula and all needed formulas, with an explicit stack because chains can exceed Python's stack.

        Tarjan's algorithm finds all cells of a cycle together, so the first evaluated cell does not affect the #CYCLE! errors.
        """
        nodes: dict[Cell, _Node] = {}
        path, component = [cell], [cell]
        nodes[cell] = self._node(0, value)
        while path:
            node = nodes[path[-1]]
            if node.next < len(node.needs):
                need = node.needs[node.next]
                node.next += 1
                if need in nodes:
                    if nodes[need].open:
                        node.low = min(node.low, nodes[need].number)
                elif need not in self._results:
                    nodes[need] = self._node(len(nodes), self._lookup(need))
                    path.append(need)
                    component.append(need)
                continue
            done = path.pop()
            if path:
                nodes[path[-1]].low = min(nodes[path[-1]].low, node.low)
            if node.low == node.number:
                self._close(done, nodes, component)

    def _close(self, first: Cell, nodes: dict[Cell, _Node], component: list[Cell]) -> None:
        """Set the values of a strongly connected component, mostly a single cell without a reference to itself."""
        members = [component.pop()]
        while members[-1] != first:
            members.append(component.pop())
        cycle = len(members) > 1 or first in nodes[first].needs
        for cell in members:
            node = nodes[cell]
            node.open = False
            self._results[cell] = Error(CYCLE) if cycle else self._run(node.steps)
            node.steps, node.needs = (), []

    def _node(self, number: int, value: Value | None) -> _Node:
        steps = parse(value.text) if value else ()
        needs: dict[Cell, None] = {}
        for step in steps:
            if step.op == "cell" and self._is_formula(step.operand):
                needs[step.operand] = None
            elif step.op in ("ref", "area"):
                needs |= dict.fromkeys(self._sum(step.operand).formulas)
        return _Node(number, steps, list(needs))

    def _is_formula(self, cell: Cell) -> bool:
        value = self._lookup(cell)
        return value is not None and value.kind == "f"

    def _lookup(self, cell: Cell) -> Value | None:
        return self._tile((cell[0] - 1) // _TILE_ROWS, (cell[1] - 1) // _TILE_COLS).get(cell)

    def _tile(self, down: int, across: int) -> dict[Cell, Value]:
        if (down, across) not in self._tiles:
            top, left = down * _TILE_ROWS + 1, across * _TILE_COLS + 1
            rect = Rect(top, left, top + _TILE_ROWS - 1, left + _TILE_COLS - 1)
            self._tiles[down, across] = dict(self._source.cells(rect))
        return self._tiles[down, across]

    def _sum(self, rect: Rect) -> _Sum:
        if rect not in self._sums:
            numbers, formulas = Decimal(0), []
            for cell, value in self._range(rect):
                if value.kind == "n":
                    numbers = _CONTEXT.add(numbers, Decimal(value.text))
                elif value.kind == "f":
                    formulas.append(cell)
            self._sums[rect] = _Sum(numbers, tuple(formulas))
        return self._sums[rect]

    def _range(self, rect: Rect) -> Iterator[tuple[Cell, Value]]:
        down = range((rect.top - 1) // _TILE_ROWS, (rect.bottom - 1) // _TILE_ROWS + 1)
        across = range((rect.left - 1) // _TILE_COLS, (rect.right - 1) // _TILE_COLS + 1)
        if len(down) * len(across) > _TILES_OF_RANGE:
            return self._source.cells(rect)
        found = (item for one in down for two in across for item in self._tile(one, two).items())
        return iter(sorted((cell, value) for cell, value in found if rect.holds(cell)))

    def _value(self, cell: Cell) -> Result:
        value = self._lookup(cell)
        return self._results[cell] if value is not None and value.kind == "f" else self.shown(cell, value)

    def _run(self, steps: Steps) -> Result:
        """Execute the steps of a formula after the evaluation of all needed formulas."""
        stack: list[Result | Rect] = []
        for step in steps:
            if step.op == "number":
                stack.append(_checked(step.operand))
            elif step.op == "error":
                stack.append(Error(step.operand))
            elif step.op == "cell":
                stack.append(self._value(step.operand))
            elif step.op in ("ref", "area"):
                stack.append(step.operand)
            else:
                taken = {"neg": 1, "sum": step.operand}.get(step.op, 2)
                arguments = stack[-taken:]
                del stack[-taken:]
                stack.append(self._applied(step, arguments))
        (result,) = stack
        assert not isinstance(result, Rect)  # only SUM has rectangles as arguments
        return Decimal(0) if result is None else result

    def _applied(self, step: FormulaStep, arguments: list[Result | Rect]) -> Result:
        if step.op == "sum":
            return self._summed(arguments)
        numbers = []
        for argument in arguments:
            number = _number(argument)
            if isinstance(number, Error):
                return number
            numbers.append(number)
        if step.op == "neg":
            return _checked(_CONTEXT.minus(numbers[0]))
        one, other = numbers
        if step.op == "div":
            return Error(DIV0) if not other else _checked(_CONTEXT.divide(one, other))
        apply = {"add": _CONTEXT.add, "sub": _CONTEXT.subtract, "mul": _CONTEXT.multiply}[step.op]
        return _checked(apply(one, other))

    def _summed(self, arguments: list[Result | Rect]) -> Result:
        total = Decimal(0)
        for argument in arguments:
            if not isinstance(argument, Rect):
                parts: list[Result] = [_number(argument)]
            else:
                held = self._sum(argument)
                parts = [held.numbers, *(self._results[cell] for cell in held.formulas)]
            for part in parts:
                if isinstance(part, Error):
                    return part
                if isinstance(part, Decimal):  # texts in references are ignored
                    total = _CONTEXT.add(total, part)
        return _checked(total)


def _number(value: Result | Rect) -> Decimal | Error:
    if value is None:
        return Decimal(0)
    return value if isinstance(value, Decimal | Error) else Error(VALUE)


def _checked(number: Decimal) -> Decimal | Error:
    """The number, or #VALUE! if the number is too large for a cell."""
    return Error(VALUE) if not number.is_finite() or number.adjusted() >= _DIGITS_MAX else number
