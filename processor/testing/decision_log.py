"""One partition of a decision log on the simulated log (see `core.decision_log.DecisionLog`)."""

from collections.abc import Callable, Sequence

from onefold.error_codes import Code
from onefold.processor.core.abc import PartitionIdentity
from onefold.processor.core.errors import Corrupted, Refused, TooMuch
from onefold.processor.testing.log import SimulatedLog

# Reads before a failed append is reported. A broker's answer takes time, during which a replica continues.
ANSWER_READS = 3


class SimulatedDecisionLog:
    """A deterministic decision log with the guarantees of the log in Kafka.

    Attributes:
        late: if a list, appended values go to the list, as delayed requests; the test appends them to the log later.
        young: the number of records at the end of the log that are younger than any age.
        refuses: whether the cluster rejects a value; a read raises the error `ANSWER_READS` reads later.
    """

    def __init__(self, log: SimulatedLog, topic: str, partition: int) -> None:
        self._log = log
        self._topic = topic
        self._partition = partition
        self._offset: int | None = 0
        self.young = 0
        self.late: list[bytes] | None = None
        self.refuses: Callable[[bytes], bool] = lambda value: False
        self._answers: list[int] = []  # for each rejected append, the number of reads until the error

    def identity(self) -> PartitionIdentity:
        """The topic id and the offsets of the log."""
        return self._log.identity(self._topic, self._partition)

    def seek(self, offset: int) -> None:
        """Continue reading at `offset`."""
        self._offset = offset

    def append(self, value: bytes) -> None:
        """Append a value at once, unless the value is rejected or late."""
        if self.refuses(value):
            self._answers.append(ANSWER_READS)
        elif self.late is None:
            self._log.append(self._topic, None, value, partition=self._partition)
        else:
            self.late.append(value)

    def read(self, timeout_s: float) -> Sequence[tuple[int, bytes | None]]:
        """Read all further records, without waiting."""
        self._raise_failure()
        if self._offset is None:
            return []
        try:
            found, self._offset = self._log.read(self._topic, self._partition, self._offset)
        except Refused as error:
            raise Corrupted(error.code, str(error)) from error
        return [(offset, entry.value) for offset, entry in found]

    def older_than(self, age_s: float) -> int:
        """The offset after all records except the `young` ones, for any age: no time passes in a simulation."""
        identity = self.identity()
        return max(identity.start, identity.end - self.young)

    def delete_before(self, offset: int) -> None:
        """Delete the records before `offset`."""
        self._log.truncate(self._topic, self._partition, offset)

    def close(self) -> None:
        """Do nothing: the log has no client to close."""

    def _raise_failure(self) -> None:
        self._answers = [reads - 1 for reads in self._answers]
        if self._answers and self._answers[0] <= 0:
            del self._answers[0]
            raise TooMuch(Code.TOO_LARGE, "a proposal could not be appended")
