"""The language of formulas: a small part of what spreadsheets have, and nothing that could do anything but arithmetic.

    =1.5+A1*-(B$2-3)/SUM(C1:D20, 4)

Numbers, references, + - * / with the usual precedence, a minus in front, brackets, and SUM of references, ranges and values. A
formula is made into steps for a stack, so that however deep its brackets are nothing is called within itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

from lark import Lark, Transformer, UnexpectedInput

from onefold.jobs.apps.sheets.cells import Rect, column, inside

#: What a formula amounts to when it cannot be a value.
CYCLE, DIV0, VALUE, NAME, REF = "#CYCLE!", "#DIV/0!", "#VALUE!", "#NAME?", "#REF!"

# Names have no numbers behind them; a name in front of a bracket is a function.
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


class Step(NamedTuple):
    """One step of a formula: what is done, and with what.

    number, error: put `operand` on the stack. cell: put the value of the cell. neg, add, sub, mul, div: take one or two, put
    one. sum: take as many as `operand` says. area, ref: a range or a cell that only SUM takes, as it is.
    """

    op: str
    operand: Any = None


Steps = tuple[Step, ...]


def _operation(op: str) -> Callable[[Any, list[Any]], Any]:
    return lambda _, found: (Step(op), tuple(found))


class _Steps(Transformer[Any, Any]):
    """A tree into steps, from the leaves up: each rule gives (its own step, what comes before it)."""

    def number(self, found: list[Any]) -> Any:
        return Step("number", Decimal(found[0])), ()

    def cell(self, found: list[Any]) -> Any:
        rect = _rect(found[0], found[0])
        return (Step("cell", rect[:2]) if rect else Step("error", REF)), ()

    def area(self, found: list[Any]) -> Any:
        rect = _rect(*found)
        return (Step("area", rect) if rect else Step("error", REF)), ()

    def name(self, found: list[Any]) -> Any:
        return Step("error", NAME), ()

    def bracket(self, found: list[Any]) -> Any:
        # What stands in brackets is a value, for SUM too.
        return Step("value"), (found[0],)

    def call(self, found: list[Any]) -> Any:
        function, *arguments = found
        if function.upper() != "SUM" or not arguments:
            return Step("error", NAME), ()
        return Step("sum", len(arguments)), tuple(arguments)

    def start(self, found: list[Any]) -> Any:
        return found[0]

    add, sub, mul, div, neg = map(_operation, ("add", "sub", "mul", "div", "neg"))


_parser = Lark(_GRAMMAR, parser="lalr", transformer=_Steps(), propagate_positions=False, maybe_placeholders=False)
# A reference with its dollars, which only matter where a formula is copied.
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
    """The steps of a formula; of one that cannot be read a single one, which puts #NAME?."""
    try:
        tree: Any = _parser.parse(formula)
    except UnexpectedInput:
        return (Step("error", NAME),)
    steps: list[Step] = []
    todo = [(tree, False)]  # with whether it is an argument of SUM
    while todo:  # the last step first; then it is turned around
        (step, children), of_sum = todo.pop()
        if step.op == "cell" and of_sum:
            step = Step("ref", Rect(*step.operand, *step.operand))
        if step.op == "area" and not of_sum:
            step = Step("error", VALUE)
        if step.op != "value":
            steps.append(step)
        todo += [(child, step.op == "sum") for child in children]
    return tuple(reversed(steps))
