"""The crash quarantine: how a task goes on after a crash, so that one poisonous record cannot crash it for ever.

A record that kills the process (a crash in compiled code, memory, a bug in a handler) kills it again after every restart.
Nothing in the process survives to count that, so the counting is done in the changelog:

- Every owner of a task begins by writing the level of its quarantine; when the records that its predecessor may have crashed
  at went well it writes "clean".
- Who finds a predecessor that did not get there takes one step: level 1 folds small batches, level 2 single records, and
  before each single record it notes which one it is about to try, and how many tries of it that makes.
- The third crash at a record that was folded alone makes it a dead letter, without another try. While one is folded alone no
  other task of the process folds: the crash would be counted against both.

Crashes in larger batches only raise the level: a kill from outside in the middle of a batch is no record's fault, and costs
a few small batches at the next start, never an answer.
"""

import json
from dataclasses import dataclass, fields

from onefold.error_codes import Code
from onefold.processor.core.errors import Corrupted

# Records in one transaction at levels 0, 1 and 2. So many are only there when there is a backlog: a row that changed often is
# written once, and larger transactions give fewer outputs, for memory (docs/performance.md, BATCH). With 100 levels 1 and 2
# together are over soonest: a record of its own takes two transactions, and the tasks of a process go one after the other.
BATCH = (80_000, 100, 1)
# So many records must go well before the level is left: the whole batch of the level before, in which the crash was.
WINDOW = (80_000, 80_000, 100)
# Crashes at one record alone before it is set aside. Kills from outside hit the few milliseconds of one record's own
# transaction three times in a row about never; a record that kills does so every time.
CRASHES_MAX = 3
# What the fields are called in the changelog, where that is not their name: 0.1.0 reads and writes them so.
_STORED_NAMES = {"clean": "calm"}


@dataclass(frozen=True)
class Quarantine:
    """What the changelog says: the level, whether its owner came to a clean end, the record being tried and how often it was."""

    level: int = 0
    clean: bool = True
    topic: str | None = None
    offset: int = 0
    tries: int = 0

    def encode(self) -> bytes:
        """The value of the crash quarantine record.

        It has no version: 0.1.0 fails at a field that it does not know, and the progress, which every transaction that
        writes this record writes too, has one for both.
        """
        return json.dumps({_STORED_NAMES.get(name, name): value for name, value in self.__dict__.items()}).encode()

    @staticmethod
    def decode(data: bytes) -> "Quarantine":
        """The quarantine; fields that are not known are left out. Raises `Corrupted` when the bytes are none."""
        try:
            body = json.loads(data)
            if not isinstance(body, dict):
                raise ValueError(f"{body!r} is no object")
            names = {one.name: _STORED_NAMES.get(one.name, one.name) for one in fields(Quarantine)}
            found = Quarantine(**{name: body[stored] for name, stored in names.items() if stored in body})
            if type(found.level) is not int or found.level not in range(len(BATCH)) or type(found.tries) is not int:
                raise ValueError(f"level {found.level!r} and tries {found.tries!r} are none")
            return found
        except (ValueError, TypeError) as error:
            raise Corrupted(
                Code.CHANGELOG_WRONG, f"the changelog's crash quarantine record cannot be read: {error}"
            ) from error

    def successor(self) -> "Quarantine":
        """What the next owner begins with."""
        if self.clean:
            return Quarantine(clean=False)
        return Quarantine(min(self.level + 1, 2), False, self.topic, self.offset, self.tries)

    def trying(self, topic: str, offset: int) -> "Quarantine":
        """One more try of that record."""
        tries = self.tries + 1 if (topic, offset) == (self.topic, self.offset) else 1
        return Quarantine(2, False, topic, offset, tries)

    def poisonous(self, topic: str, offset: int) -> bool:
        """Whether that record was folded alone, and crashed, often enough."""
        return (topic, offset) == (self.topic, self.offset) and self.tries >= CRASHES_MAX

    def relaxed(self) -> "Quarantine":
        """One level down, after a window of records went well."""
        return Quarantine(1, clean=False) if self.level == 2 else Quarantine()
