"""The guarantee under the current settings of Kafka and PostgreSQL, and the rules for weakened and broken guarantees.

A setting *weakens* the guarantee if an accident can lose acknowledged records or a verification. The loss then is
consistent on both sides, or a component detects the loss and stops. A setting *breaks* the guarantee if an accident can
lose one half of an atomic change, or a record before the record counts. Totals are then wrong. A service refuses to start
under a setting of the second kind, unless ONEFOLD_ALLOW names the rule.

The table has no client settings: a user cannot change the client settings behind a guarantee, for instance acks
(`spark_sink.kafka.client`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

#: The variable with the names of the permitted breaking rules.
ALLOW = "ONEFOLD_ALLOW"
#: The rule for records with an unknown schema. Only a sink with this permission rejects the records, so no start is refused.
UNKNOWN_CONTRACTS = "unknown_contracts"
POSTGRES = "PostgreSQL"
#: The guarantee of a processor, of a sink, and of both.
FOLDED = "each record is processed exactly once, whatever process crashes"
LANDED = "each record is written to PostgreSQL exactly once, whatever process crashes"
END_TO_END = "each record counts exactly once from input to table, whatever process crashes"

# The upper bound for the restore of a changelog, far below Kafka's default of a day for delete.retention.ms.
_LONGEST_RESTORE_MS = 3_600_000
# A hundred years: users also write the largest number for unlimited retention, instead of -1.
_FOREVER_MS = 100 * 365 * 86_400_000
# The number of named subjects in a finding. The sentence counts the rest, to fit on a line.
_NAMED = 1
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


class TopicRole(StrEnum):
    """The role of a topic in a pipeline."""

    INPUT = "input"
    OUTPUT = "output"
    CHANGELOG = "changelog"
    DEAD = "dead letters"
    ORDER = "order"
    DECISIONS = "decision log"
    RECEIPTS = "receipts of replays"
    TRANSACTIONS = "transaction log"


_ALL = frozenset(TopicRole)
# Topics in which each record counts, written exactly once.
_LOGS = frozenset(
    {TopicRole.INPUT, TopicRole.OUTPUT, TopicRole.DEAD, TopicRole.ORDER, TopicRole.DECISIONS, TopicRole.RECEIPTS}
)
# Topics that only `verify` reads again from the beginning.
_RECOMPUTED = frozenset({TopicRole.INPUT, TopicRole.OUTPUT, TopicRole.DEAD, TopicRole.ORDER})


@dataclass(frozen=True)
class TopicSettings:
    """The description of a topic by Kafka.

    Attributes:
        replicas: The smallest number of replicas of a partition.
        config: The effective values by Kafka's names, restricted to the requested names; {} if Kafka does not return them.
    """

    name: str
    role: TopicRole
    replicas: int
    config: Mapping[str, str]


@dataclass(frozen=True)
class PostgresSettings:
    """The settings of a PostgreSQL session, by PostgreSQL's names, and the unlogged tables, which a crash empties."""

    settings: Mapping[str, str]
    unlogged: Sequence[str] = ()


@dataclass(frozen=True)
class ServerFacts:
    """The facts about Kafka and PostgreSQL that the rules examine.

    Attributes:
        postgres: None if the caller does not query PostgreSQL.
        set_aside: Pipelines whose sink rejects records with an unknown schema.
        unknown: The subjects without a known state, by reason.
    """

    topics: Sequence[TopicSettings] = ()
    postgres: PostgresSettings | None = None
    set_aside: Sequence[str] = ()
    unknown: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """A rule of the table.

    Attributes:
        name: The name for programs, and for ONEFOLD_ALLOW if the rule breaks the guarantee.
        breaks: Whether the setting breaks the guarantee; False if the setting only weakens the guarantee.
        concerns: Return the names of the topics or tables with the setting, with details in parentheses.
        means: The consequence, the part of the sentence after the names.
        instead: The setting to use instead.
    """

    name: str
    breaks: bool
    concerns: Callable[[ServerFacts], list[str]]
    means: str
    instead: str


def _topics(
    roles: Collection[TopicRole],
    so: Callable[[TopicSettings], bool],
    more: Callable[[TopicSettings], str] = lambda topic: "",
) -> Callable[[ServerFacts], list[str]]:
    def concerned(facts: ServerFacts) -> list[str]:
        found = [topic for topic in facts.topics if topic.role in roles and so(topic)]
        return list(dict.fromkeys(f"{topic.name}{more(topic)}" for topic in found))

    return concerned


def _postgres(setting: str, value: str) -> Callable[[ServerFacts], list[str]]:
    def concerned(facts: ServerFacts) -> list[str]:
        return [POSTGRES] if facts.postgres and facts.postgres.settings.get(setting) == value else []

    return concerned


def _unlogged(facts: ServerFacts) -> list[str]:
    return list(facts.postgres.unlogged) if facts.postgres else []


def _set(topic: TopicSettings, name: str, *values: str) -> bool:
    return topic.config.get(name) in values


def _has_policy(topic: TopicSettings, policy: str) -> bool:
    return policy in topic.config.get("cleanup.policy", "").split(",")


def _forgets(topic: TopicSettings) -> bool:
    """Whether Kafka deletes the topic's records at a bounded age or size."""
    return _has_policy(topic, "delete") and bool(_bounds(topic))


def _forgets_ends(topic: TopicSettings) -> bool:
    """Whether Kafka may delete a tombstone during a restore that has read the key's value and not yet the tombstone."""
    return int(topic.config.get("delete.retention.ms", _LONGEST_RESTORE_MS)) < _LONGEST_RESTORE_MS


def _bounds(topic: TopicSettings) -> list[str]:
    """The topic's retention time and retention size, for people; [] if Kafka keeps records forever."""
    ms, size = int(topic.config.get("retention.ms", "-1")), int(topic.config.get("retention.bytes", "-1"))
    unit, length = next((found for found in _UNITS if ms >= found[1]), ("ms", 1))
    found = [f"{ms / length:.3g} {unit}"] if 0 <= ms < _FOREVER_MS else []
    return [*found, f"{size} bytes"] if size >= 0 else found


def _kept(topic: TopicSettings) -> str:
    return f" ({', '.join(_bounds(topic))})"


#: The rules for settings of Kafka and PostgreSQL. Rules that break the guarantee come first.
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
        _topics({TopicRole.CHANGELOG}, _forgets, _kept),
        "Kafka deletes the states of keys without records for that time, and those keys begin with a new state",
        "set cleanup.policy=compact",
    ),
    Rule(
        "decision_log_retention",
        True,
        _topics({TopicRole.DECISIONS}, _forgets, _kept),
        "Kafka deletes decisions, also those that are not published yet",
        "set retention.ms=-1 and retention.bytes=-1",
    ),
    Rule(
        "receipts_retention",
        True,
        _topics({TopicRole.RECEIPTS}, _forgets, _kept),
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
        _topics({TopicRole.CHANGELOG}, _forgets_ends),
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
#: The valid names in ONEFOLD_ALLOW.
BREAKING = tuple(rule.name for rule in RULES if rule.breaks)


@dataclass(frozen=True)
class GuaranteeFinding:
    """A rule that applies, with the names of its topics or tables.

    `allowed`: the rule breaks the guarantee, and the user permits the rule by name.
    """

    name: str
    breaks: bool
    allowed: bool
    concerns: Sequence[str]
    means: str
    instead: str

    @property
    def word(self) -> str:
        """The effect on the guarantee, for people."""
        if not self.breaks:
            return "weakened"
        return "broken, as allowed" if self.allowed else "broken"

    def sentence(self) -> str:
        """A sentence with the subjects, the consequence and the remedy."""
        return f"{_named(self.concerns)}: {self.means}; {self.instead}"

    def as_data(self) -> dict[str, Any]:
        """The finding as a dictionary for JSON."""
        return {
            "name": self.name,
            "breaks": self.breaks,
            "allowed": self.allowed,
            "concerns": list(self.concerns),
            "sentence": self.sentence(),
        }


@dataclass(frozen=True)
class Guarantee:
    """The result of the rules.

    Attributes:
        findings: The findings in the order of the table.
        unknown: A sentence for each reason of missing facts.
    """

    findings: Sequence[GuaranteeFinding]
    unknown: Sequence[str]

    @property
    def holds(self) -> bool | None:
        """Whether the guarantee holds: False if a finding breaks the guarantee, else None if facts are missing."""
        if any(finding.breaks for finding in self.findings):
            return False
        return None if self.unknown else True

    def refusal(self) -> str | None:
        """The reason to refuse the start, with the permitting value of ONEFOLD_ALLOW; None if the service may start."""
        broken = [finding for finding in self.findings if finding.breaks and not finding.allowed]
        if not broken:
            return None
        sentences = "; and ".join(finding.sentence() for finding in broken)
        names = ",".join(finding.name for finding in self.findings if finding.breaks)
        return f"{sentences}, or accept it by name: {ALLOW}={names}"

    def lines(self, promise: str) -> list[str]:
        """The lines to print: whether the promise holds, each finding, and each missing fact."""
        first = {True: "guaranteed", None: "guaranteed, as far as is known", False: "not guaranteed"}[self.holds]
        found = [f"{finding.word}: {finding.sentence()}" for finding in self.findings]
        return [f"{first}: {promise}", *found, *(f"unknown: {sentence}" for sentence in self.unknown)]

    def as_data(self) -> dict[str, Any]:
        """{"holds": bool or None, "findings": [{"name", "breaks", "allowed", "concerns", "sentence"}], "unknown": [sentence]}."""
        findings = [finding.as_data() for finding in self.findings]
        return {"holds": self.holds, "findings": findings, "unknown": list(self.unknown)}


def judge(facts: ServerFacts, allowed: Collection[str]) -> Guarantee:
    """Apply all rules to the facts. `allowed`: the names of the permitted breaking rules."""
    findings = []
    for rule in RULES:
        if concerns := rule.concerns(facts):
            may = rule.breaks and rule.name in allowed
            findings.append(GuaranteeFinding(rule.name, rule.breaks, may, concerns, rule.means, rule.instead))
    unknown = [f"{_named(subjects)}: {why}" for why, subjects in facts.unknown.items()]
    return Guarantee(findings, unknown)


def _named(subjects: Sequence[str]) -> str:
    more = len(subjects) - _NAMED
    return ", ".join(subjects[:_NAMED]) + (f" and {more} more" if more > 0 else "")
