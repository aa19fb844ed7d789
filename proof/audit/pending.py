"""Output records that are read before the model has taken the input that they name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onefold.proof.audit.versions import Key, Version
from onefold.proof.expect import Table
from onefold.proof.record import Source

Named = tuple[Table, Key, Version]


class Pending:
    """By input place and offset, those that name it."""

    def __init__(self) -> None:
        self._named: dict[tuple[str, int], dict[int, list[Named]]] = {}

    def __bool__(self) -> bool:
        return any(self._named.values())

    def add(self, source: Source, named: Named) -> None:
        """One more of an input."""
        at_place = self._named.get(source[:2])
        if at_place is None:
            at_place = self._named[source[:2]] = {}
        several = at_place.get(source.offset)
        if several is None:
            at_place[source.offset] = [named]
        else:
            several.append(named)

    def take(self, place: tuple[str, int], offset: int) -> Sequence[Named]:
        """Those of an input, once."""
        at_place = self._named.get(place)
        return at_place.pop(offset, ()) if at_place else ()

    def take_before(self, place: tuple[str, int], until: int) -> Iterator[tuple[int, Named]]:
        """All of a place that name an input before that offset, each with the input's, once."""
        at_place = self._named.get(place, {})
        for offset in [offset for offset in at_place if offset < until]:
            for named in at_place.pop(offset):
                yield offset, named
