"""Where the transactions of a pipeline end in its inputs, as far as is known.

Of several inputs the topic `<domain>.order` has all ends. Of one input the progress records that were read have some: the
changelog is compacted.
"""

from array import array
from bisect import bisect_right
from collections.abc import Mapping

from onefold.verify.record import Source


class Commits:
    """The ends of transactions, by partition. Memory: two numbers for each input and transaction that was not forgotten."""

    def __init__(self) -> None:
        # Per place the offsets behind the last record of a transaction, and the number of each transaction.
        self._ends: dict[tuple[str, int], tuple[array[int], array[int]]] = {}

    def add(self, partition: int, number: int, ends: Mapping[str, int]) -> None:
        """Take the end of a transaction; the numbers of one partition go up.

        Args:
            ends: by input the offset behind the last record that the transaction, or one before it, has processed.
        """
        for topic, end in ends.items():
            known, numbers = self._ends.setdefault((topic, partition), (array("q"), array("q")))
            if not known or known[-1] < end:
                known.append(end)
                numbers.append(number)

    def part(self, one: Source, other: Source) -> bool:
        """Whether it is known that a transaction ended between an input record and a later one of the same partition."""
        ends, numbers = self._ends.get(one[:2], ((), ()))
        at = bisect_right(ends, one.offset)
        if at == len(ends):
            return False
        if one.topic == other.topic:
            return one.partition == other.partition and ends[at] <= other.offset
        return one.partition == other.partition and numbers[at] != self._number(other)

    def _number(self, source: Source) -> int | None:
        ends, numbers = self._ends.get(source[:2], ((), ()))
        at = bisect_right(ends, source.offset)
        return numbers[at] if at < len(ends) else None

    def forget(self, reached: Mapping[tuple[str, int], int]) -> None:
        """Nothing is asked any more of inputs below these offsets."""
        for place, (ends, numbers) in self._ends.items():
            at = bisect_right(ends, reached.get(place, 0))
            del ends[:at], numbers[:at]
