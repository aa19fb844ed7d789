"""The right partition of a record: Kafka's default partitioner, from its published description.

The partition is the 32-bit MurmurHash2 of the key with Kafka's seed, its sign bit cleared, modulo the number of partitions.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from onefold.verify.record import Source
from onefold.verify.verdict import Finding

_WORD = 0xFFFFFFFF
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """Return the hash, as an unsigned 32-bit number."""
    state = (_SEED ^ len(data)) & _WORD
    whole = len(data) - len(data) % 4
    for word in struct.unpack_from(f"<{whole // 4}I", data):
        word = word * _MULTIPLIER & _WORD
        state = (state * _MULTIPLIER ^ (word ^ word >> 24) * _MULTIPLIER) & _WORD
    if data[whole:]:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _WORD
    state = (state ^ (state >> 13)) * _MULTIPLIER & _WORD
    return state ^ (state >> 15)


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of all records with this key."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


# The number of first records of an input partition that serve as evidence.
_EVIDENCE = 100
# The limit of records in the right place only under a smaller number of partitions; an increase of partitions may leave very
# many.
_DOUBTFUL_MAX = 1_000


class Misplaced(NamedTuple):
    """A record outside the partition of its key."""

    right: int
    partition: int
    offset: int
    source: Source
    row: dict[str, Any]


class Layout:
    """Finds records of an output topic outside the partition of their key, even after an increase of partitions.

    Kafka does not record the former number of partitions. A smaller number is ruled out by a record in the right partition that
    would have a different partition under this number. The number is then ruled out for all later records of the same input
    partition.

    Args:
        partitions: the present number of partitions of the topic.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self._seen: dict[tuple[str, int], int] = {}
        # By input partition and number of partitions, the offset of the first record in contradiction to the number.
        self._ruled_out: dict[tuple[str, int], dict[int, int]] = {}
        self._wrong: list[Misplaced] = []
        self._doubtful: list[tuple[Misplaced, list[int]]] = []

    def knows(self, source: Source) -> bool:
        """Return whether enough records of this input partition were seen: further right ones are no more evidence."""
        return self._seen.get(source[:2], 0) >= _EVIDENCE

    def take(self, key: str, partition: int, offset: int, source: Source, row: dict[str, Any]) -> None:
        """Take a record with this offset, and its row."""
        place, number = source[:2], murmur2(key.encode()) & 0x7FFFFFFF
        right = number % self.partitions
        if right == partition:
            self._note(place, number, partition, source.offset)
            return
        one = Misplaced(right, partition, offset, source, row)
        fitting = [before for before in range(1, self.partitions) if number % before == partition]
        if not self._may_be(one, fitting):
            self._wrong.append(one)
        elif len(self._doubtful) < _DOUBTFUL_MAX:
            self._doubtful.append((one, fitting))

    def misplaced(self) -> list[Misplaced]:
        """Return the records known by now to be in the wrong partition, once each."""
        found = [*self._wrong, *(one for one, fitting in self._doubtful if not self._may_be(one, fitting))]
        self._wrong.clear()
        self._doubtful = [(one, fitting) for one, fitting in self._doubtful if self._may_be(one, fitting)]
        return found

    def _note(self, place: tuple[str, int], number: int, partition: int, offset: int) -> None:
        seen = self._seen.get(place, 0)
        if seen < _EVIDENCE:
            self._seen[place] = seen + 1
            ruled_out = self._ruled_out.setdefault(place, {})
            for before in range(1, self.partitions):
                if number % before == partition:
                    break  # a possible former number; larger numbers came later
                ruled_out[before] = min(offset, ruled_out.get(before, offset))

    def _may_be(self, one: Misplaced, fitting: list[int]) -> bool:
        ruled_out = self._ruled_out.get(one.source[:2], {})
        return any(ruled_out.get(before, one.source.offset) >= one.source.offset for before in fitting)


def misplaced(topic: str, found: Iterable[Misplaced]) -> Iterator[Finding]:
    """Yield the mismatches of records outside the partition of their Kafka key."""
    for one in found:
        wrong, place = {"Kafka partition": (one.right, one.partition)}, f"{topic}/{one.partition}/{one.offset}"
        yield Finding("wrong output", topic, one.row, wrong, place, str(one.source))
