"""The language of formulas: a small, purely arithmetic part of spreadsheet formulas.

    =1.5+A1*-(B$2-3)/SUM(C1:D20, 4)

Numbers, references, + - * / with the usual precedence, signs, parentheses, and SUM of references, ranges and values. A formula
becomes a list of steps for a stack machine, so deeply nested parentheses need no recursion.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

from lark import Lark, Transformer, UnexpectedInput

from onefold.jobs.apps.sheets.cells import Rect, column, inside

#: The error values of formulas.
CYCLE, DIV0, VALUE, NAME, REF = "#CYCLE!", "#DIV/0!", "#VALUE!", "#NAME?", "#REF!"

# A number is never followed by letters, as in a name. A name before an opening parenthesis is a function.
_GRAMMAR = r"""
start: "=" sum
?sum: product | sum "+" product -> add | sum "-" product -> sub
?product: signed | product "*" signed -> mul | product "/" signed -> div
?signed: atom | "-" signed -> neg | "+" signed
?atom: NUMBER -> number | CELL -> cell | CELL ":" CELL -> area | NAME -> name | "(" sum ")" -> bracket
     | FUNCTION "(" [sum ("," sum)*] ")" -> call
NUMBER: /(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?(?![A-Za-z0-9_.$])/
CELL.3: /\$?[A-Za-z]{1,3}\$?[0-9]+(?![A-Za-z0-9_.$(])/
FUNCTION.2: /[A-Za-z_][A-Za-z0-9_.]*(?=[ \t\r\n]*\()/
NAME: /[A-Za-z_][A-Za-z0-9_.]*/
%ignore /[ \t\r\n]+/
"""


class FormulaStep(NamedTuple):
    """A step of a formula: an operation and its operand.

    number, error: push `operand`. cell: push the value of the cell. neg, add, sub, mul, div: pop the arguments and push the
    result. sum: pop `operand` arguments and push the sum. area, ref: push a range or a cell unevaluated, only for SUM.
    """

    op: str
    operand: Any = None


Steps = tuple[FormulaStep, ...]


def _operation(op: str) -> Callable[[Any, list[Any]], Any]:
    return lambda _, found: (FormulaStep(op), tuple(found))


class _Steps(Transformer[Any, Any]):
    """Transform a parse tree into steps, from the leaves up. Each rule yields its own step and the preceding trees."""

    def number(self, found: list[Any]) -> Any:
        return FormulaStep("number", Decimal(found[0])), ()

    def cell(self, found: list[Any]) -> Any:
        rect = _rect(found[0], found[0])
        return (FormulaStep("cell", rect[:2]) if rect else FormulaStep("error", REF)), ()

    def area(self, found: list[Any]) -> Any:
        rect = _rect(*found)
        return (FormulaStep("area", rect) if rect else FormulaStep("error", REF)), ()

    def name(self, found: list[Any]) -> Any:
        return FormulaStep("error", NAME), ()

    def bracket(self, found: list[Any]) -> Any:
        # Parentheses yield a value, also as an argument of SUM.
        return FormulaStep("value"), (found[0],)

    def call(self, found: list[Any]) -> Any:
        function, *arguments = found
        if function.upper() != "SUM" or not arguments:
            return FormulaStep("error", NAME), ()
        return FormulaStep("sum", len(arguments)), tuple(arguments)

    def start(self, found: list[Any]) -> Any:
        return found[0]

    add, sub, mul, div, neg = map(_operation, ("add", "sub", "mul", "div", "neg"))


_parser = Lark(_GRAMMAR, parser="lalr", transformer=_Steps(), propagate_positions=False, maybe_placeholders=False)
# A reference with optional dollar signs, relevant only for copying a formula.
_CELL = re.compile(r"\$?([A-Z]{1,3})\$?([0-9]+)")


def _rect(one: str, other: str) -> Rect | None:
    corners = []
    for text in (one, other):
        found = _CELL.fullmatch(text.upper())
        if found is None or len(found[2]) > 7 or not inside((int(found[2]), column(found[1]))):
            return None
        corners.append((int(found[2]), column(found[1])))
    (row, col), (to_row, to_col) = corners
    return Rect(min(row, to_row), min(col, to_col), max(row, to_row), max(col, to_col))


def parse(formula: str) -> Steps:
    """The steps of a formula. An invalid formula has a single step with the error #NAME?."""
    try:
        tree: Any = _parser.parse(formula)
    except UnexpectedInput:
        return (FormulaStep("error", NAME),)
    steps: list[FormulaStep] = []
    todo = [(tree, False)]  # the flag: whether the tree is an argument of SUM
    while todo:  # from the last step to the first, reversed at the end
        (step, children), of_sum = todo.pop()
        if step.op == "cell" and of_sum:
            step = FormulaStep("ref", Rect(*step.operand, *step.operand))
        if step.op == "area" and not of_sum:
            step = FormulaStep("error", VALUE)
        if step.op != "value":
            steps.append(step)
        todo += [(child, step.op == "sum") for child in children]
    return tuple(reversed(steps))
