"""The lines of an uploaded payload, read in ranges because a payload may be larger than memory."""

from collections import deque
from collections.abc import Iterator

from onefold.jobs.apps.sheets.cells import BEGIN, LINE_BYTES_MAX, Cell, NotCanonical, Rect, Value, parse_line
from onefold.jobs.protocols import Missing, ReadableObjects, Refuse

# The bytes of each read of a payload. About a hundred entries between two snapshots together need a few MB.
RANGE_BYTES = 64 * 1024


class PayloadLines:
    """Iterate over (cell, value, line) of a payload, from a byte offset on. The value None clears the cell.

    Raises `Refuse` for content in a non-canonical form, and `Missing` for a missing object.
    """

    def __init__(self, objects: ReadableObjects, name: str, offset: int = 0, range_bytes: int = RANGE_BYTES) -> None:
        self._objects, self._name, self._range_bytes = objects, name, range_bytes
        #: The first cell of each range, and the offset of its line.
        self._known: deque[tuple[Cell, int]] = deque([(BEGIN, offset)])

    def offset_before(self, cell: Cell) -> int:
        """An offset at or before the lines of this cell and all later cells. Calls must come with ascending cells."""
        while len(self._known) > 1 and self._known[1][0] <= cell:
            self._known.popleft()
        return self._known[0][1]

    def __iter__(self) -> Iterator[tuple[Cell, Value | None, bytes]]:
        before = BEGIN
        for offset, lines in self._blocks():
            for number, line in enumerate(lines):
                try:
                    cell, value = parse_line(line)
                except NotCanonical as error:
                    raise Refuse(f"the object {self._name} is no payload: {error}") from None
                if cell <= before:
                    raise Refuse(f"the object {self._name} is no payload: its cells are not in order, each once")
                if number == 0:
                    self._known.append((cell, offset))
                before = cell
                yield cell, value, line

    def _blocks(self) -> Iterator[tuple[int, list[bytes]]]:
        """The complete lines of each range, and the offset of the first line."""
        size = self._objects.size(self._name)
        if size is None:
            raise Missing(self._name)
        offset, kept = self._known[0][1], [b""]
        at = offset
        while at < size:
            block = self._objects.get(self._name, at, min(at + self._range_bytes, size))
            at += len(block)
            *lines, rest = block.split(b"\n")
            kept.append(lines[0] if lines else rest)
            if sum(map(len, kept)) > LINE_BYTES_MAX:
                raise Refuse(
                    f"the object {self._name} is no payload: a line of it has more than {LINE_BYTES_MAX:,} bytes"
                )
            if lines:
                whole = [line + b"\n" for line in (b"".join(kept), *lines[1:])]
                yield offset, whole
                offset, kept = at - len(rest), [rest]
        if any(kept):
            raise Refuse(f"the object {self._name} is no payload: its last line has no end")


def lines_in(objects: ReadableObjects, name: str, rect: Rect) -> Iterator[tuple[Cell, Value | None]]:
    """The values of a payload for the cells of a rectangle; reads only the part of the payload that may have these cells.

    Raises `Missing` and `Refuse`.
    """
    for cell, value, _ in PayloadLines(objects, name, _start(objects, name, (rect.top, rect.left))):
        if cell > (rect.bottom, rect.right):
            return
        if rect.holds(cell):
            yield cell, value


def _start(objects: ReadableObjects, name: str, wanted: Cell) -> int:
    """The offset of a line at or before the first line with a cell at or after `wanted`, by binary search."""
    low, high = 0, objects.size(name) or 0  # the line at `low` has a cell before `wanted`, or is the first line
    while high - low > RANGE_BYTES:
        middle = (low + high) // 2
        found = _line_after(objects, name, middle, high)
        if found is not None and found[1] < wanted:
            low = found[0]
        else:
            high = middle
    return low


def _line_after(objects: ReadableObjects, name: str, at: int, end: int) -> tuple[int, Cell] | None:
    """The offset and the cell of the first line that begins after `at` and ends at or before `end`."""
    for wide in (1, 32, 1024):  # KiB: most lines are short
        block = objects.get(name, at, min(at + wide * 1024, end))
        first = block.find(b"\n") + 1
        last = block.find(b"\n", first) + 1
        if first and last:
            try:
                return at + first, parse_line(block[first:last])[0]
            except NotCanonical as error:
                raise Refuse(f"the object {name} is no payload: {error}") from None
    return None
