"""The verdict: valid, invalid, or unknown; with all mismatches, as plain data.

"Unknown" is no success. A verification with an unread topic, or with an error of its own, proves nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from onefold import exit_codes
from onefold.error_codes import Code, CodedError

VALID, INVALID, UNKNOWN = "valid", "invalid", "unknown"
EXIT_CODES = {VALID: exit_codes.OK, INVALID: exit_codes.FAILED, UNKNOWN: exit_codes.UNKNOWN}

#: The kinds of mismatches, the worst first: doubled and phantom records and rows, then losses, then further errors.
KINDS = {
    "doubled output": "one input record changed one row twice",
    "phantom output": "an output record that no accepted input record asks for",
    "extra row": "a row that no input record asks for",
    "different row": "a row with other values than the input gives",
    "wrong output": "an output record with other values than the input gives",
    "missing output": "an output record that an accepted input record asks for was never written",
    "skipped input": "an input record that the processor read past and never processed",
    "missing row": "a row that the input asks for is not there",
    "doubled copy": "a record was copied to the partition of its key more than once, or without need",
    "missing copy": "a repartitioned record has no copy in the partition of its key",
    "doubled dead letter": "an input record is in the dead-letter topic twice",
    "extra dead letter": "a dead letter for an input record that is not inadmissible",
    "missing dead letter": "an inadmissible input record without a dead letter",
    "changed dead letter": "a dead letter that does not hold what was sent",
    "missing object": "an object that a snapshot or an entry names is not in the object store",
    "wrong object": "an object that does not hold what the log gives, or whose name is not the digest of its content",
    "orphan object": "an object that nothing names",
    "doubled replay": "a dead letter was replayed into the input twice, or without a receipt",
    "missing replay": "a dead letter that was replayed, as a receipt says, is not in the input",
    "changed replay": "the record that was replayed into the input is not the dead letter's record, or has another turn",
    "broken invariant": "a row of a query in sql/invariant, which must never give any",
    "wrong origin": "a row with correct values that names another record than the one that last changed it",
    "wrong column": "a column of another type than agreed, or a computed one that is not generated",
    "rejected output": "an output record that the sink could not write",
    "unreadable output": "an output record that does not follow its schema",
    "wrong time": "a tick that says another time than Kafka has of its record",
    "wrong ledger": "the sink's ledger differs from the written rows",
    "wrong progress": "the processor's progress lies beyond the end of an input",
    "wrong state": "a state in the changelog that differs from what the handler makes of the input",
    "wrong count": "the processor's own counts differ from the input",
}


# Kinds that are wrong even if compaction has removed input records.
_WRONG_ANYWAY = {
    "doubled output",
    "skipped input",
    "doubled dead letter",
    "changed dead letter",
    "broken invariant",
    "wrong column",
    "rejected output",
    "unreadable output",
    "wrong time",
    "wrong ledger",
    "wrong progress",
}


class CannotTell(CodedError):
    """An obstacle hides part of the pipeline from the verifier; the text is the reason, in one sentence."""


@dataclass(frozen=True)
class Finding:
    """A mismatch.

    Attributes:
        kind: a key of `KINDS`.
        where: the table or topic.
        key: the key of the row, by column; empty for a mismatch without a row.
        columns: by differing column, the expected and the found value.
        output: `topic/partition/offset` of the output record or dead letter, if any.
        source: the same of the input record.
        text: any further explanation.
        weight: the numeric difference, to find the worst mismatch of a kind.
    """

    kind: str
    where: str
    key: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    output: str | None = None
    source: str | None = None
    text: str = ""
    weight: int = 0


@dataclass(frozen=True)
class Check:
    """A complete comparison: how many there should be, and how many there are."""

    what: str
    expected: int
    found: int


@dataclass
class Verdict:
    """The outcome for a pipeline.

    Attributes:
        offsets: by topic and partition, the offset up to which all records were read.
        proved: the number of records verified by an earlier verdict and not read again.
        proved_at: the time of the earlier verdict, in UTC; "" if all records were read from the beginning.
        note: a further remark for a person, or "".
        begins: by topic and partition, the first offset of the records read.
        outputs: the number of output records, from the beginning of the log.
        rows: the number of table rows compared.
        states: the number of states compared, which are all states; None: states were not compared.
        not_judged: the parts of the pipeline without a comparison, each with the reason from the model, or "".
        uncompared: the number of output records not compared one by one.
        code: the code of the obstacle to a verdict, or "".
    """

    domain: str
    outcome: str
    reason: str
    checks: list[Check] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    seconds: float = 0.0
    proved: int = 0
    proved_at: str = ""
    note: str = ""
    uncompared: int = 0
    code: str = ""
    begins: dict[str, dict[int, int]] = field(default_factory=dict)
    outputs: int = 0
    rows: int = 0
    states: int | None = None
    not_judged: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 valid, 1 invalid, 2 unknown."""
        return EXIT_CODES[self.outcome]

    def kinds(self) -> dict[str, int]:
        """Return the number of mismatches of each kind, the worst kind first."""
        counted = Counter(finding.kind for finding in self.findings)
        return {kind: counted[kind] for kind in KINDS if counted[kind]}

    def as_data(self) -> dict[str, Any]:
        """Return the verdict as data for JSON, with the first and the worst mismatch of each kind."""
        summary = {
            kind: {"count": count, "meaning": KINDS[kind], "first": asdict(first), "worst": asdict(worst)}
            for kind, count in self.kinds().items()
            for first, worst in [_first_and_worst(f for f in self.findings if f.kind == kind)]
        }
        return {**asdict(self), "kinds": summary, "exit_code": self.exit_code}


def beyond_ledger(landed: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]) -> Iterator[Finding]:
    """Yield output partitions with a ledger offset beyond the end of the topic: the sink would skip the next records.

    Args:
        landed: the next offsets, by topic and partition.
        ends: of the topics, asked for after `landed`.
    """
    for (topic, partition), offset in landed.items():
        if offset > (end := ends.get((topic, partition), offset)):
            where = {"topic": topic, "partition": partition}
            text = f"the ledger says that {offset} are written, and the topic ends at {end}"
            yield Finding("wrong ledger", "onefold.ledger", where, text=text)


def beyond_progress(read: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]) -> Iterator[Finding]:
    """Yield input partitions with a processor's progress beyond the end of the topic: the processor would skip the next
    records. The arguments are as in `beyond_ledger`.
    """
    for (topic, partition), offset in read.items():
        if offset > (end := ends.get((topic, partition), offset)):
            where = {"topic": topic, "partition": partition}
            yield Finding(
                "wrong progress", topic, where, text=f"the processor has read up to {offset}, and it ends at {end}"
            )


def decide(findings: list[Finding], holdup: str, still: bool) -> tuple[str, str, str]:
    """Return the outcome, its reason, and the code of the obstacle to a verdict, or ""."""
    if holdup:
        return UNKNOWN, f"the pipeline has not drained: {holdup}", str(Code.NOT_DRAINED)
    if not findings:
        return VALID, "every row, dead letter and repartitioned copy is what follows from the input log", ""
    if not still:
        return UNKNOWN, "input is still arriving, and rows differ", str(Code.NOT_DRAINED)
    return INVALID, f"{len(findings)} differences from what follows from the input log", ""


def doubted(findings: Iterable[Finding], compacted: Iterable[str]) -> str:
    """Return why these mismatches prove nothing, in one sentence, or "".

    Args:
        compacted: inputs with compaction, where Kafka may have deleted records in the middle.
    """
    topics = ", ".join(compacted)
    if not topics or any(finding.kind in _WRONG_ANYWAY for finding in findings):
        return ""
    return (
        f"rows or records differ from what follows from the input log, but {topics} is compacted (cleanup.policy): records "
        f"that explain the differences may be gone from it"
    )


def _first_and_worst(findings: Iterable[Finding]) -> tuple[Finding, Finding]:
    listed = list(findings)
    return listed[0], max(listed, key=lambda finding: finding.weight)
