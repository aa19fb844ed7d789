"""The fates of input records."""

from dataclasses import dataclass


class Fate:
    """The fate of an input offset, in one byte. NONE: no committed record, but a control record or an aborted record."""

    NONE, ACCEPTED, IGNORED, REPARTITIONED, DEAD = range(5)


#: By fate, the explanation for a record that names the input record.
FATES = {
    Fate.NONE: "there is no such committed input record",
    Fate.ACCEPTED: "that input record is accepted",
    Fate.IGNORED: "that input record changes nothing",
    Fate.REPARTITIONED: "that input record takes effect as its copy in another partition",
    Fate.DEAD: "that input record is a dead letter",
}


@dataclass
class FateCounts:
    """The number of input records by fate."""

    accepted: int = 0
    ignored: int = 0
    repartitioned: int = 0
    dead: int = 0

    def count(self, fate: int) -> None:
        """Count a record with this fate."""
        if fate == Fate.ACCEPTED:
            self.accepted += 1
        elif fate == Fate.IGNORED:
            self.ignored += 1
        elif fate == Fate.REPARTITIONED:
            self.repartitioned += 1
        elif fate == Fate.DEAD:
            self.dead += 1

    @property
    def records(self) -> int:
        """The number of all records."""
        return self.accepted + self.ignored + self.repartitioned + self.dead

    def as_stored(self) -> dict[str, int]:
        """Return the counts by their names in the changelog and in verdicts."""
        return {"accepted": self.accepted, "ignored": self.ignored, "forwarded": self.repartitioned, "dead": self.dead}
