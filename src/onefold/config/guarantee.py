"""What is guaranteed with the settings in force, and what weakens it: facts in, findings out, by one table.

A setting *weakens* when an accident that it lets through costs records that were acknowledged, or a proof: what is lost is lost
on both sides, or is noticed and refused. It *breaks* when one half of what belongs together can be lost without the other, or
a record before it counts: then numbers are wrong. What breaks is refused at start, unless ONEFOLD_ALLOW names it.

Settings of the clients are not in the table: those that carry a promise, such as acks, cannot be changed at all
(`spark_sink.kafka.client`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

#: The variable that names what may break a promise.
ALLOW = "ONEFOLD_ALLOW"
#: The rule that a sink follows on its way: whoever allows it is told at start, and nobody is refused then.
UNKNOWN_CONTRACTS = "unknown_contracts"
POSTGRES = "PostgreSQL"
#: What is guaranteed: by a processor, by a sink, and by both.
FOLDED = "each record is processed exactly once, whatever process crashes"
LANDED = "each record is written to PostgreSQL exactly once, whatever process crashes"
END_TO_END = "each record counts exactly once from input to table, whatever process crashes"

# No restore of a changelog has taken a tenth of that; Kafka's default is a day.
_LONGEST_RESTORE_MS = 3_600_000
# A hundred years. Some write the largest number that there is instead of -1.
_FOREVER_MS = 100 * 365 * 86_400_000
# So many are named, the others are counted: a line should stay one.
_NAMED = 1
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


class Role(StrEnum):
    """What a topic is to a pipeline."""

    INPUT = "input"
    OUTPUT = "output"
    CHANGELOG = "changelog"
    DEAD = "dead letters"
    ORDER = "order"
    DECISIONS = "decision log"
    RECEIPTS = "receipts of replays"
    TRANSACTIONS = "transaction log"


_ALL = frozenset(Role)
# What was written once, and each record of which counts.
_LOGS = frozenset({Role.INPUT, Role.OUTPUT, Role.DEAD, Role.ORDER, Role.DECISIONS, Role.RECEIPTS})
# What `verify` reads from its beginning, and nothing else depends on for ever.
_RECOMPUTED = frozenset({Role.INPUT, Role.OUTPUT, Role.DEAD, Role.ORDER})


@dataclass(frozen=True)
class Topic:
    """A topic as Kafka describes it. `config` is {} where Kafka does not say, and has no value that was not asked for.

    Attributes:
        replicas: of the partition that has the fewest.
        config: by Kafka's names, the values that hold for the topic, wherever they were set.
    """

    name: str
    role: Role
    replicas: int
    config: Mapping[str, str]


@dataclass(frozen=True)
class Postgres:
    """What a session of PostgreSQL says. `settings` by its names; `unlogged` are tables whose rows do not survive a crash."""

    settings: Mapping[str, str]
    unlogged: Sequence[str] = ()


@dataclass(frozen=True)
class Facts:
    """What was found out.

    Attributes:
        postgres: None where nobody asks it.
        set_aside: pipelines whose sink was told to set records of contracts aside that it does not know.
        unknown: by reason what could not be.
    """

    topics: Sequence[Topic] = ()
    postgres: Postgres | None = None
    set_aside: Sequence[str] = ()
    unknown: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """A line of the table.

    Attributes:
        name: for programs; and for ONEFOLD_ALLOW, when it breaks.
        breaks: a promise is broken, and not only weakened.
        concerns: what of the facts is so set, by name, with what is worth to be said of it in brackets.
        means: what comes of it; what it concerns is said before that.
        instead: what to set.
    """

    name: str
    breaks: bool
    concerns: Callable[[Facts], list[str]]
    means: str
    instead: str


def _topics(
    roles: Collection[Role], so: Callable[[Topic], bool], more: Callable[[Topic], str] = lambda topic: ""
) -> Callable[[Facts], list[str]]:
    def concerned(facts: Facts) -> list[str]:
        found = [topic for topic in facts.topics if topic.role in roles and so(topic)]
        return list(dict.fromkeys(f"{topic.name}{more(topic)}" for topic in found))

    return concerned


def _postgres(setting: str, value: str) -> Callable[[Facts], list[str]]:
    def concerned(facts: Facts) -> list[str]:
        return [POSTGRES] if facts.postgres and facts.postgres.settings.get(setting) == value else []

    return concerned


def _unlogged(facts: Facts) -> list[str]:
    return list(facts.postgres.unlogged) if facts.postgres else []


def _set(topic: Topic, name: str, *values: str) -> bool:
    return topic.config.get(name) in values


def _has_policy(topic: Topic, policy: str) -> bool:
    return policy in topic.config.get("cleanup.policy", "").split(",")


def _forgets(topic: Topic) -> bool:
    """Does Kafka delete its records one day?"""
    return _has_policy(topic, "delete") and bool(_bounds(topic))


def _forgets_ends(topic: Topic) -> bool:
    """Might a record that ends a key be gone while somebody is between what it ends and where it was?"""
    return int(topic.config.get("delete.retention.ms", _LONGEST_RESTORE_MS)) < _LONGEST_RESTORE_MS


def _bounds(topic: Topic) -> list[str]:
    """After how long, or beyond what size, for people; [] is never."""
    ms, size = int(topic.config.get("retention.ms", "-1")), int(topic.config.get("retention.bytes", "-1"))
    unit, length = next((found for found in _UNITS if ms >= found[1]), ("ms", 1))
    found = [f"{ms / length:.3g} {unit}"] if 0 <= ms < _FOREVER_MS else []
    return [*found, f"{size} bytes"] if size >= 0 else found


def _kept(topic: Topic) -> str:
    return f" ({', '.join(_bounds(topic))})"


#: What can be set so that less is guaranteed. Those that break come first.
RULES = (
    Rule(
        "unclean_leader_election",
        True,
        _topics(_ALL, lambda topic: topic.replicas > 1 and _set(topic, "unclean.leader.election.enable", "true")),
        "a broker that missed records may become leader, and of one transaction some are gone while others stay",
        "set unclean.leader.election.enable=false",
    ),
    Rule(
        "changelog_retention",
        True,
        _topics({Role.CHANGELOG}, _forgets, _kept),
        "Kafka deletes the states of keys without records for that time, and those keys begin with a new state",
        "set cleanup.policy=compact",
    ),
    Rule(
        "decision_log_retention",
        True,
        _topics({Role.DECISIONS}, _forgets, _kept),
        "Kafka deletes decisions, also those that are not published yet",
        "set retention.ms=-1 and retention.bytes=-1",
    ),
    Rule(
        "receipts_retention",
        True,
        _topics({Role.RECEIPTS}, _forgets, _kept),
        "Kafka deletes the receipts of dead letters, which may then be replayed twice, or count although they were dropped",
        "set retention.ms=-1 and retention.bytes=-1",
    ),
    Rule(
        "compaction",
        True,
        _topics(_LOGS, lambda topic: _has_policy(topic, "compact")),
        "Kafka removes records whose key comes again, counted or not",
        "set cleanup.policy=delete and retention.ms=-1",
    ),
    Rule(
        "fsync_off",
        True,
        _postgres("fsync", "off"),
        "fsync is off, and after a power cut rows and offsets need not be of one moment",
        "set fsync=on",
    ),
    Rule(
        "full_page_writes_off",
        True,
        _postgres("full_page_writes", "off"),
        "full_page_writes is off, and a power cut may leave halves of pages, of rows or of offsets",
        "set full_page_writes=on",
    ),
    Rule(
        "unlogged_tables",
        True,
        _unlogged,
        "it is unlogged, and a crash of PostgreSQL empties it, but not what else a batch has written",
        "ALTER TABLE it SET LOGGED",
    ),
    Rule(
        UNKNOWN_CONTRACTS,
        True,
        lambda facts: list(facts.set_aside),
        "the sink rejects records of a schema that it does not know, and totals are wrong without them",
        "start a sink of the version that the processors have",
    ),
    Rule(
        "one_replica",
        False,
        _topics(_ALL, lambda topic: topic.replicas == 1),
        "one replica, and a lost disk or power cut of its broker can lose acknowledged records",
        "keep three",
    ),
    Rule(
        "one_in_sync_replica",
        False,
        _topics(_ALL, lambda topic: topic.replicas > 1 and _set(topic, "min.insync.replicas", "1")),
        "min.insync.replicas is 1, so what one broker has acknowledged while the others were behind is lost with it",
        "set min.insync.replicas=2",
    ),
    Rule(
        "retention",
        False,
        _topics(_RECOMPUTED, _forgets, _kept),
        "Kafka deletes records after that time; a processor or sink that has not read them stops, and verify reports unknown",
        "set retention.ms=-1 and retention.bytes=-1",
    ),
    Rule(
        "tombstones",
        False,
        _topics({Role.CHANGELOG}, _forgets_ends),
        "delete.retention.ms is less than an hour, so a restore that takes longer may bring an ended state back",
        "set delete.retention.ms=86400000",
    ),
    Rule(
        "synchronous_commit_off",
        False,
        _postgres("synchronous_commit", "off"),
        "synchronous_commit is off, so a crash may take back the last batches, rows and offsets; the sink writes them again",
        "set synchronous_commit=on",
    ),
)  # fmt: skip
#: What ONEFOLD_ALLOW may name.
BREAKING = tuple(rule.name for rule in RULES if rule.breaks)


@dataclass(frozen=True)
class Finding:
    """A rule that applies. `concerns` names what it applies to; `allowed`: it breaks a promise, and was asked for by name."""

    name: str
    breaks: bool
    allowed: bool
    concerns: Sequence[str]
    means: str
    instead: str

    @property
    def word(self) -> str:
        """What is done to the promise."""
        if not self.breaks:
            return "weakened"
        return "broken, as allowed" if self.allowed else "broken"

    def sentence(self) -> str:
        """One, with what to do."""
        return f"{_named(self.concerns)}: {self.means}; {self.instead}"

    def as_data(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "name": self.name,
            "breaks": self.breaks,
            "allowed": self.allowed,
            "concerns": list(self.concerns),
            "sentence": self.sentence(),
        }


@dataclass(frozen=True)
class Guarantee:
    """What the facts amount to.

    Attributes:
        findings: in the order of the table.
        unknown: a sentence each.
    """

    findings: Sequence[Finding]
    unknown: Sequence[str]

    @property
    def holds(self) -> bool | None:
        """False: something breaks a promise. None: nothing that is known does."""
        if any(finding.breaks for finding in self.findings):
            return False
        return None if self.unknown else True

    def refusal(self) -> str | None:
        """Why not to start: one sentence that names what would allow it; None when there is nothing."""
        broken = [finding for finding in self.findings if finding.breaks and not finding.allowed]
        if not broken:
            return None
        sentences = "; and ".join(finding.sentence() for finding in broken)
        names = ",".join(finding.name for finding in self.findings if finding.breaks)
        return f"{sentences}, or accept it by name: {ALLOW}={names}"

    def lines(self, promise: str) -> list[str]:
        """What is to be said: whether the promise holds, and a line for each finding."""
        first = {True: "guaranteed", None: "guaranteed, as far as is known", False: "not guaranteed"}[self.holds]
        found = [f"{finding.word}: {finding.sentence()}" for finding in self.findings]
        return [f"{first}: {promise}", *found, *(f"unknown: {sentence}" for sentence in self.unknown)]

    def as_data(self) -> dict[str, Any]:
        """{"holds": bool or None, "findings": [{"name", "breaks", "allowed", "concerns", "sentence"}], "unknown": [sentence]}."""
        findings = [finding.as_data() for finding in self.findings]
        return {"holds": self.holds, "findings": findings, "unknown": list(self.unknown)}


def judge(facts: Facts, allowed: Collection[str]) -> Guarantee:
    """What the facts amount to. `allowed`: names of rules that may break."""
    findings = []
    for rule in RULES:
        if concerns := rule.concerns(facts):
            may = rule.breaks and rule.name in allowed
            findings.append(Finding(rule.name, rule.breaks, may, concerns, rule.means, rule.instead))
    unknown = [f"{_named(subjects)}: {why}" for why, subjects in facts.unknown.items()]
    return Guarantee(findings, unknown)


def _named(subjects: Sequence[str]) -> str:
    more = len(subjects) - _NAMED
    return ", ".join(subjects[:_NAMED]) + (f" and {more} more" if more > 0 else "")
