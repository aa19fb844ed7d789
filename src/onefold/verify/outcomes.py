"""What became of input records: one fate each."""

from dataclasses import dataclass


class Fate:
    """One byte an input offset; NONE where no committed record lies (control records, aborted ones)."""

    NONE, ACCEPTED, IGNORED, REPARTITIONED, DEAD = range(5)


#: What a fate says of a record that names it.
FATES = {
    Fate.NONE: "there is no such committed input record",
    Fate.ACCEPTED: "that input record is accepted",
    Fate.IGNORED: "that input record changes nothing",
    Fate.REPARTITIONED: "that input record takes effect as its copy in another partition",
    Fate.DEAD: "that input record is a dead letter",
}


@dataclass
class FateCounts:
    """How many input records met which fate."""

    accepted: int = 0
    ignored: int = 0
    repartitioned: int = 0
    dead: int = 0

    def count(self, fate: int) -> None:
        """One more of this fate."""
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
        """All of them."""
        return self.accepted + self.ignored + self.repartitioned + self.dead

    def as_stored(self) -> dict[str, int]:
        """By the names that the changelog and verdicts have for them."""
        return {"accepted": self.accepted, "ignored": self.ignored, "forwarded": self.repartitioned, "dead": self.dead}
