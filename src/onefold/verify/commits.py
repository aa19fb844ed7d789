"""The known ends of a pipeline's transactions in its inputs.

With several inputs, the topic `<pipeline>.order` has all ends. With one input, only some progress records are left in the
compacted changelog.
"""

from array import array
from bisect import bisect_right
from collections.abc import Mapping

from onefold.verify.record import Source


class Commits:
    """The ends of transactions, by partition. Memory: two numbers for each input and transaction, until `forget`."""

    def __init__(self) -> None:
        # By input partition, the offset behind the last record of each transaction, and the number of the transaction.
        self._ends: dict[tuple[str, int], tuple[array[int], array[int]]] = {}

    def add(self, partition: int, number: int, ends: Mapping[str, int]) -> None:
        """Add the end of a transaction. The numbers of a partition increase.

        Args:
            ends: by input, the offset behind the last record processed by the transaction or an earlier one.
        """
        for topic, end in ends.items():
            known, numbers = self._ends.setdefault((topic, partition), (array("q"), array("q")))
            if not known or known[-1] < end:
                known.append(end)
                numbers.append(number)

    def part(self, one: Source, other: Source) -> bool:
        """Return whether a transaction is known to have ended between an input record and a later one of the same partition."""
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
        """Forget the ends below these offsets; the caller asks for no input there any more."""
        for place, (ends, numbers) in self._ends.items():
            at = bisect_right(ends, reached.get(place, 0))
            del ends[:at], numbers[:at]
