"""The diagram of a pipeline's flow: where its boxes, arrows and numbers stand. It is drawn twice, for a wide window and for a
narrow one, and the CSS shows one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from onefold.dashboard.standing import Tone

# More boxes on top of each other are no overview; the last one then says how many are left out.
BOXES_MAX = 6
BOX_H, GAP_H = 46, 12
# The width of the diagram, and in it of the boxes and of the arrows between them.
WIDE_W, WIDE_BOX, WIDE_ARROW = 1180, (196, 120, 196, 100, 196), 93
TALL_W, TALL_ARROW = 320, 58
# Of a box, per letter of its name: the widest fonts of a system are a little narrower.
LETTER_W = 8.2
_ROUND = 26


class Box(NamedTuple):
    """A topic, a service or a table.

    Attributes:
        kind: "topic", "service", "table" or "dead"; its class.
        name: what stands in it, whole; `shown` is as much of it as fits.
        under: the line below it, or "".
    """

    kind: str
    name: str
    under: str = ""
    x: float = 0
    y: float = 0
    w: float = 0
    h: float = BOX_H
    link: str = ""

    @property
    def shown(self) -> str:
        """Its name, cut where it is too long for the box."""
        most = max(4, int((self.w - 20) / LETTER_W))
        return self.name if len(self.name) <= most else f"{self.name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


class Arrow(NamedTuple):
    """A line from box to box. tone: its class; it moves when `flows`."""

    path: str
    tone: Tone
    flows: bool
    head: bool = True


class Number(NamedTuple):
    """What stands at an arrow."""

    x: float
    y: float
    text: str
    kind: str = ""
    anchor: str = "middle"


class Leg(NamedTuple):
    """A part of the way. text, under: the numbers above and below its arrow."""

    text: str
    under: str = ""
    tone: Tone = "quiet"
    flows: bool = False


class Way(NamedTuple):
    """All that the diagram shows.

    Attributes:
        legs: from the inputs to the processor, to the outputs, to the sink, to the tables.
        dead: the box of the dead letters, and the number at its arrow.
        says: all of it in words, for who does not see it.
    """

    inputs: Sequence[Box]
    processor: Box
    outputs: Sequence[Box]
    sink: Box
    tables: Sequence[Box]
    legs: Sequence[Leg]
    dead: Box
    to_dead: Leg
    says: str


@dataclass
class Diagram:
    """Boxes, arrows and numbers in a rectangle."""

    kind: str
    w: float
    h: float
    says: str
    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)


def few(boxes: Sequence[Box]) -> list[Box]:
    """As many as can be shown."""
    if len(boxes) <= BOXES_MAX:
        return list(boxes)
    rest = len(boxes) - BOXES_MAX + 1
    return [*boxes[: BOXES_MAX - 1], Box(boxes[0].kind, f"and {rest} more")]


def wide(way: Way) -> Diagram:
    """From left to right."""
    columns = [few(way.inputs), [way.processor], few(way.outputs), [way.sink], few(way.tables)]
    most = max(len(column) for column in columns)
    flow_h = max(most * (BOX_H + GAP_H) - GAP_H, BOX_H + 24)
    middle, below = flow_h / 2 + 14, flow_h / 2 + 14 + BOX_H / 2 + 58
    diagram = Diagram("wide", WIDE_W + 2, max(flow_h + 28, below + BOX_H + 2), way.says)
    x = 1.0
    for number, (column, width) in enumerate(zip(columns, WIDE_BOX, strict=True)):
        top = middle - (len(column) * (BOX_H + GAP_H) - GAP_H) / 2
        placed = [box._replace(x=x, y=top + at * (BOX_H + GAP_H), w=width) for at, box in enumerate(column)]
        diagram.boxes += placed
        if number:
            leg, start = way.legs[number - 1], x - WIDE_ARROW
            diagram.arrows += _across(diagram.boxes, placed, columns[number - 1], start, middle, leg)
            spread = len(placed) > 1
            at = start + WIDE_ARROW / 2 + (-_ROUND / 2 if spread else _ROUND / 2 if len(columns[number - 1]) > 1 else 0)
            diagram.numbers += [Number(at, middle - 8, leg.text), Number(at, middle + 18, leg.under, "under")]
        x += width + WIDE_ARROW
    _dead_below(diagram, way, below)
    return diagram


def _across(
    boxes: Sequence[Box], right: Sequence[Box], before: Sequence[Box], start: float, middle: float, leg: Leg
) -> list[Arrow]:
    """The arrows of one leg: what comes of several boxes runs together first, what goes to several runs apart last."""
    left = boxes[-len(right) - len(before) : -len(right)]
    arrows = []
    end = start + WIDE_ARROW - 3
    if len(left) == 1 and len(right) == 1:
        return [Arrow(f"M{start} {middle}H{end}", leg.tone, leg.flows)]
    join = start + WIDE_ARROW / 2 if len(left) > 1 and len(right) > 1 else start + _ROUND
    fork = join if len(left) > 1 and len(right) > 1 else end - _ROUND
    for box in left if len(left) > 1 else ():
        y = box.y + BOX_H / 2
        bend = f"M{start} {y}C{start + _ROUND * 0.6} {y} {join - _ROUND * 0.6} {middle} {join} {middle}"
        arrows.append(Arrow(bend, leg.tone, leg.flows, head=False))
    trunk_from, trunk_to = (join if len(left) > 1 else start), (fork if len(right) > 1 else end)
    if trunk_to > trunk_from:
        arrows.append(Arrow(f"M{trunk_from} {middle}H{trunk_to}", leg.tone, leg.flows, head=len(right) == 1))
    for box in right if len(right) > 1 else ():
        y = box.y + BOX_H / 2
        bend = f"M{fork} {middle}C{fork + _ROUND * 0.6} {middle} {end - _ROUND * 0.6} {y} {end} {y}"
        arrows.append(Arrow(bend, leg.tone, leg.flows))
    return arrows


def _dead_below(diagram: Diagram, way: Way, y: float) -> None:
    processor = next(box for box in diagram.boxes if box.kind == "service")
    middle, top = processor.x + processor.w / 2, processor.y + BOX_H
    dead = way.dead._replace(x=middle - 75, y=y, w=150)
    diagram.boxes.append(dead)
    diagram.arrows.append(Arrow(f"M{middle} {top}V{y - 3}", way.to_dead.tone, False))
    diagram.numbers.append(Number(middle + 10, (top + y) / 2 + 4, way.to_dead.text, "", "start"))


def tall(way: Way) -> Diagram:
    """From top to bottom."""
    stages = [few(way.inputs), [way.processor], few(way.outputs), [way.sink], few(way.tables)]
    diagram = Diagram("tall", TALL_W, 0, way.says)
    y = 1.0
    for number, stage in enumerate(stages):
        if number:
            leg = way.legs[number - 1]
            diagram.arrows.append(Arrow(f"M40 {y}V{y + TALL_ARROW - 3}", leg.tone, leg.flows))
            text = Number(54, y + TALL_ARROW / 2 - 2, leg.text, "", "start")
            diagram.numbers += [text, Number(54, y + TALL_ARROW / 2 + 16, leg.under, "under", "start")]
            y += TALL_ARROW
        width = 140 if number == 1 else TALL_W - 2
        for at, box in enumerate(stage):
            diagram.boxes.append(box._replace(x=1, y=y + at * (BOX_H + 4), w=width))
        if number == 1:
            dead = way.dead._replace(x=TALL_W - 131, y=y, w=130)
            diagram.boxes.append(dead)
            diagram.arrows.append(Arrow(f"M141 {y + BOX_H / 2}H{dead.x - 3}", way.to_dead.tone, False))
            diagram.numbers.append(Number((141 + dead.x) / 2, y + BOX_H / 2 - 7, way.to_dead.text))
        y += len(stage) * (BOX_H + 4) - 4
    return replace(diagram, h=y + 1)
