"""What came true in a decision log, by the judge's own reading of its rule.

Replicas of a task each append what they have computed, and the log is one order for all. A record of it is decided when

    it opens     and nothing was opened before; or the last was a close, and its version is greater, and of no topic that is
                 still read an offset goes back. It reads nothing.
    it steps     or closes, while it is open, carries the version that comes next, and reads each input from the very offset,
                 of the very topic, that comes next. A step reads something, a close nothing.

All others came to nothing, whatever they hold; and so did what says that it was written for another log. What the decisions
write is judged as if it lay in the output topics; whoever publishes it there may be late, or gone.
"""

import io
import json
from collections import Counter
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import fastavro

from onefold.error_codes import Code
from onefold.proof.record import Record
from onefold.proof.verdict import CannotTell

_FOLDER = Path(str(resources.files("onefold"))) / "avro" / "engine"
_FORMAT = 1
#: A row of a table names the write of a decision by one number: 21 bits for which of its writes it is.
WRITES_MAX = 1 << 21
_COUNTS = ("accepted", "ignored", "forwarded", "dead")


class Standing(NamedTuple):
    """Of a task: its next version, per input the topic's id and what is read next, and whether the log is closed for it."""

    version: int
    inputs: dict[str, tuple[str, int]]
    closed: bool


class Decided:
    """Takes the records of a decision log; a partition of it is the task of that number.

    Args:
        log_id: the id of the log's topic.
        take: gets every record that a decision writes. Its partition is the task, and its offset the place in the log that a
            row has as its origin.
    """

    def __init__(self, log_id: str, take: Callable[[Record], object]) -> None:
        self._log_id = log_id
        self._take = take
        self._schemas = [
            fastavro.parse_schema(json.loads((_FOLDER / f"{name}.avsc").read_text(encoding="utf-8"))) for name in _FILES
        ]
        self.standings: dict[int, Standing] = {}
        self.counts: Counter[str] = Counter()
        #: Per task and topic the version that wrote to it last.
        self.wrote: dict[tuple[int, str], int] = {}

    def ahead(self, read: Callable[[Callable[[Record], None]], object]) -> dict[int, Standing]:
        """Where the tasks stand after the records that `read` hands over, which are not taken for that."""
        other = Decided(self._log_id, lambda record: None)
        other.standings = dict(self.standings)
        read(other.feed)
        return other.standings

    def feed(self, record: Record) -> None:
        """The next record of its partition."""
        proposal = self._proposal(record)
        if proposal is None or proposal["task"] != record.partition or proposal["kind"] == "note":
            return
        inputs = {one["topic"]: (one["topic_id"], one["start"], one["end"]) for one in proposal["inputs"]}
        before = self.standings.get(record.partition)
        if not _comes_true(before, proposal["kind"], proposal["version"], inputs):
            return
        if proposal["kind"] == "open" and proposal["version"] != (before.version if before else 0) + 1:
            raise CannotTell(
                Code.TABLES_OF_OTHER_TOPICS,
                f"task {record.partition} was decided by Kafka transactions before {record.topic}/{record.partition}/"
                f"{record.offset}, and tables that are filled from the log do not have that",
            )
        version = proposal["version"] + (proposal["kind"] != "open")
        ends = {topic: (topic_id, end) for topic, (topic_id, _, end) in inputs.items()}
        self.standings[record.partition] = Standing(version, ends, proposal["kind"] == "close")
        self.counts.update(dict(zip(_COUNTS, proposal["counts"], strict=True)))
        writes: Any = fastavro.schemaless_reader(io.BytesIO(proposal["writes"]), self._schemas[1], None)
        for number, write in enumerate(writes):
            self.wrote[record.partition, write["topic"]] = version
            headers = [(header["name"], header["value"]) for header in write["headers"]]
            at = record.offset * WRITES_MAX + number
            self._take(Record(write["topic"], record.partition, at, write["key"], write["value"], headers))

    def _proposal(self, record: Record) -> Any:
        """None for what is no record of a decision log, whoever wrote it there."""
        if not record.value or not record.value[0]:
            return None
        if record.value[0] > _FORMAT:
            raise CannotTell(Code.NEWER_VERSION, f"{record.topic} is written by a newer Onefold; verify with that one")
        try:
            stream = io.BytesIO(record.value[1:])
            found: Any = fastavro.schemaless_reader(stream, self._schemas[0], None)
            rest = stream.read()
            # A string of Avro: its length, then its bytes. A record of an earlier Onefold has none.
            if rest and fastavro.schemaless_reader(io.BytesIO(rest), "string", None) not in ("", self._log_id):
                return None
        except (ValueError, TypeError, KeyError, IndexError, EOFError, AttributeError, MemoryError):
            return None
        return found if found["kind"] == "note" or len(found["counts"]) == len(_COUNTS) else None


_FILES = ("decision", "writes")


def _comes_true(before: Standing | None, kind: str, version: int, inputs: dict[str, tuple[str, int, int]]) -> bool:
    lengths = [end - start for _, start, end in inputs.values()]
    if kind == "open":
        if any(lengths):
            return False
        if before is None:
            return True
        stays = [(before.inputs[topic], part) for topic, part in inputs.items() if topic in before.inputs]
        return (
            before.closed
            and version > before.version
            and all(known[0] == part[0] and part[1] >= known[1] for known, part in stays)
        )
    if before is None or before.closed or version != before.version:
        return False
    if {topic: part[:2] for topic, part in inputs.items()} != before.inputs or any(length < 0 for length in lengths):
        return False
    return any(lengths) == (kind == "step")
