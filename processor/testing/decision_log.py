"""One partition of a decision log on the simulated log (see `core.decision_log.DecisionLog`)."""

from collections.abc import Callable, Sequence

from onefold.error_codes import Code
from onefold.processor.core.abc import PartitionIdentity
from onefold.processor.core.errors import Corrupted, Refused, TooMuch
from onefold.processor.testing.log import SimulatedLog

# A broker is not heard of at once: meanwhile a replica may do something else.
ANSWER_READS = 3


class SimulatedDecisionLog:
    """Keeps the promises of Kafka's, deterministically.

    `late`: when it is a list, appends are kept in it instead, as if they were long under way: append them by hand.
    `young`: so many records at its end are younger than any age.
    `refuses`: which values the cluster does not take; a read says so, `ANSWER_READS` later.
    """

    def __init__(self, log: SimulatedLog, topic: str, partition: int) -> None:
        self._log = log
        self._topic = topic
        self._partition = partition
        self._offset: int | None = 0
        self.young = 0
        self.late: list[bytes] | None = None
        self.refuses: Callable[[bytes], bool] = lambda value: False
        self._answers: list[int] = []  # how many reads each of the refusals is away

    def identity(self) -> PartitionIdentity:
        """Which topic it is now, and what it holds."""
        return self._log.identity(self._topic, self._partition)

    def seek(self, offset: int) -> None:
        """Read from there on."""
        self._offset = offset

    def append(self, value: bytes) -> None:
        """It lies there at once, unless it is late."""
        if self.refuses(value):
            self._answers.append(ANSWER_READS)
        elif self.late is None:
            self._log.append(self._topic, None, value, partition=self._partition)
        else:
            self.late.append(value)

    def read(self, timeout_s: float) -> Sequence[tuple[int, bytes | None]]:
        """All that is there; there is nothing to wait for."""
        self._raise_failure()
        if self._offset is None:
            return []
        try:
            found, self._offset = self._log.read(self._topic, self._partition, self._offset)
        except Refused as error:
            raise Corrupted(error.code, str(error)) from error
        return [(offset, entry.value) for offset, entry in found]

    def older_than(self, age_s: float) -> int:
        """No time passes here: all but the young ones."""
        identity = self.identity()
        return max(identity.start, identity.end - self.young)

    def delete_before(self, offset: int) -> None:
        """Delete the records before that offset."""
        self._log.truncate(self._topic, self._partition, offset)

    def close(self) -> None:
        """Leave."""

    def _raise_failure(self) -> None:
        self._answers = [reads - 1 for reads in self._answers]
        if self._answers and self._answers[0] <= 0:
            del self._answers[0]
            raise TooMuch(Code.TOO_LARGE, "a proposal could not be appended")
