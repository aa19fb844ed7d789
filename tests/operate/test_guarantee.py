"""What is guaranteed: a table of settings, and of what is said of each."""

from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.config import settings
from onefold.config.errors import UserError
from onefold.config.guarantee import (
    BREAKING,
    END_TO_END,
    RULES,
    PostgresSettings,
    ServerFacts,
    TopicRole,
    TopicSettings,
    judge,
)
from onefold.error_codes import Code
from onefold.operate import server_settings
from onefold.processor.loading import topology_of
from tests.support.coded import raises

pytestmark = pytest.mark.promise("guarantees")

KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
COMPACTED = {"cleanup.policy": "compact", "retention.ms": "604800000", "delete.retention.ms": "86400000"}
SAFE = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}
ON = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
WEEK = {"cleanup.policy": "delete", "retention.ms": "604800000"}


def topic(role: TopicRole, config: Mapping[str, str], replicas: int = 3) -> ServerFacts:
    """One topic, as it should be but for that."""
    usual = COMPACTED if role in (TopicRole.CHANGELOG, TopicRole.TRANSACTIONS) else KEPT
    return ServerFacts([TopicSettings("t", role, replicas, {**SAFE, **usual, **config})])


def postgres(setting: str, value: str) -> ServerFacts:
    """PostgreSQL, as it should be but for that."""
    return ServerFacts(postgres=PostgresSettings({**ON, setting: value}))


CASES: list[tuple[ServerFacts, str | None, str]] = [
    *((topic(role, {}), None, "") for role in TopicRole),
    *((topic(role, {"unclean.leader.election.enable": "true"}), "unclean_leader_election", "t: ") for role in TopicRole),
    # There is nobody else who could become leader.
    (topic(TopicRole.INPUT, {"unclean.leader.election.enable": "true"}, 1), "one_replica", "t: one replica"),
    (topic(TopicRole.CHANGELOG, WEEK), "changelog_retention", "t (7 d): Kafka deletes the states"),
    (topic(TopicRole.CHANGELOG, {"cleanup.policy": "compact,delete"}), "changelog_retention", "t (7 d): "),
    (topic(TopicRole.CHANGELOG, {"cleanup.policy": "delete", "retention.ms": "-1"}), None, ""),
    (topic(TopicRole.CHANGELOG, {**WEEK, "retention.ms": "-1", "retention.bytes": "99"}), "changelog_retention", "t (99 bytes)"),
    (topic(TopicRole.CHANGELOG, {"delete.retention.ms": "1000"}), "tombstones", "t: delete.retention.ms"),
    (topic(TopicRole.DECISIONS, WEEK), "decision_log_retention", "t (7 d): "),
    (topic(TopicRole.RECEIPTS, WEEK), "receipts_retention", "t (7 d): "),
    *(
        (topic(role, WEEK), "retention", "t (7 d): Kafka deletes")
        for role in (TopicRole.INPUT, TopicRole.OUTPUT, TopicRole.DEAD, TopicRole.ORDER)
    ),
    (topic(TopicRole.INPUT, {**WEEK, "retention.ms": "90000", "retention.bytes": "5"}), "retention", "t (1.5 min, 5 bytes)"),
    (topic(TopicRole.INPUT, {**WEEK, "retention.ms": str(2**63 - 1)}), None, ""),
    (topic(TopicRole.INPUT, {"cleanup.policy": ""}), None, ""),
    *((topic(role, {"cleanup.policy": "compact"}), "compaction", "t: ") for role in TopicRole
      if role not in (TopicRole.CHANGELOG, TopicRole.TRANSACTIONS)),
    (topic(TopicRole.TRANSACTIONS, {}, 1), "one_replica", "t: one replica"),
    (topic(TopicRole.INPUT, {"min.insync.replicas": "1"}), "one_in_sync_replica", "t: min.insync.replicas is 1"),
    (topic(TopicRole.INPUT, {"min.insync.replicas": "1"}, 1), "one_replica", "t: one replica"),
    (postgres("fsync", "on"), None, ""),
    (postgres("fsync", "off"), "fsync_off", "PostgreSQL: fsync is off"),
    (postgres("full_page_writes", "off"), "full_page_writes_off", "PostgreSQL: full_page_writes is off"),
    (postgres("synchronous_commit", "off"), "synchronous_commit_off", "PostgreSQL: synchronous_commit is off"),
    (postgres("synchronous_commit", "remote_apply"), None, ""),
    (ServerFacts(set_aside=["runner"]), "unknown_contracts", "runner: the sink rejects records of a schema that it does"),
    (ServerFacts(postgres=PostgresSettings(ON, ["runner.stats"])), "unlogged_tables", "runner.stats: it is unlogged"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "name", "says"), CASES)
def test_every_setting_is_named_by_the_one_rule_that_it_is_for(facts: ServerFacts, name: str | None, says: str) -> None:
    """One finding, or none; a sentence that begins with what it is about; refused if, and only if, it breaks a promise."""
    found = judge(facts, ())
    assert [finding.name for finding in found.findings] == ([name] if name else [])
    assert found.holds is (name not in BREAKING)
    for finding in found.findings:
        assert finding.sentence().startswith(says)
        assert "\n" not in finding.sentence()
    refusal = found.refusal()
    assert (refusal is not None) is (name in BREAKING)
    if refusal is not None:
        assert refusal.endswith(f"ONEFOLD_ALLOW={name}")


def test_no_rule_is_without_a_case() -> None:
    assert {rule.name for rule in RULES} == {name for _, name, _ in CASES if name}


def test_what_is_allowed_by_name_is_said_and_not_refused() -> None:
    """And nothing else is: each name stands for one thing."""
    both = ServerFacts([TopicSettings("c", TopicRole.CHANGELOG, 3, WEEK)], PostgresSettings({**ON, "fsync": "off"}))
    one = judge(both, {"fsync_off"})
    refusal = one.refusal()
    assert refusal is not None
    assert refusal.startswith("c (7 d): ")
    assert refusal.endswith("ONEFOLD_ALLOW=changelog_retention,fsync_off")
    all_of_it = judge(both, {"fsync_off", "changelog_retention"})
    assert all_of_it.refusal() is None
    assert all_of_it.holds is False
    first, *rest = all_of_it.lines(END_TO_END)
    assert first == f"not guaranteed: {END_TO_END}"
    assert [line.partition(":")[0] for line in rest] == ["broken, as allowed", "broken, as allowed"]


def test_many_topics_make_one_line() -> None:
    """And in JSON each is named."""
    facts = ServerFacts([TopicSettings(f"t{number}", TopicRole.INPUT, 1, KEPT) for number in range(40)])
    found = judge(facts, ())
    assert found.lines(END_TO_END)[0] == f"guaranteed: {END_TO_END}"
    (line,) = found.lines(END_TO_END)[1:]
    assert line.startswith("weakened: t0 and 39 more: one replica")
    assert len(found.as_data()["findings"][0]["concerns"]) == 40


def test_what_is_unknown_is_neither_guaranteed_nor_refused() -> None:
    """Kafka has said how many replicas there are, and nothing else."""
    found = judge(
        ServerFacts([TopicSettings("t", TopicRole.CHANGELOG, 1, {})], unknown={"Kafka does not say": ["t", "u"]}), ()
    )
    assert found.holds is None
    assert found.refusal() is None
    assert [line.partition(":")[0] for line in found.lines(END_TO_END)] == [
        "guaranteed, as far as is known", "weakened", "unknown",
    ]  # fmt: skip
    assert found.unknown == ["t and 1 more: Kafka does not say"]


def test_every_topic_of_a_pipeline_has_its_role() -> None:
    """A decision log where there are replicas, an order where there are several inputs, and an input that is an output too."""
    bank = dict.fromkeys(server_settings.roles_of(topology_of("bank"), replicated=True))
    assert {role for _, role in bank} == set(TopicRole) - {TopicRole.TRANSACTIONS}
    assert {("bank.decisions", TopicRole.DECISIONS)} == {*bank} - {
        *server_settings.roles_of(topology_of("bank"), replicated=False)
    }
    fed = topology_of("bank").fed[0]
    assert {role for name, role in bank if name == fed} == {TopicRole.INPUT, TopicRole.OUTPUT}


@pytest.mark.parametrize("value", ["", "fsync_off", " fsync_off , compaction,"])
def test_what_may_break_is_a_list_of_names(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_ALLOW", value)
    assert settings.load().allowed() == {name for name in BREAKING if name in value}
    assert settings.load().as_environment().get("ONEFOLD_ALLOW") == value


@pytest.mark.parametrize("value", ["everything", "fsync_off,one_replica", "FSYNC_OFF"])
def test_a_name_that_breaks_nothing_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt one would allow nothing, and look as if it did."""
    monkeypatch.setenv("ONEFOLD_ALLOW", value)
    with raises(UserError, Code.SETTING_WRONG, "ONEFOLD_ALLOW") as caught:
        settings.load()
    assert caught.value.exit_code == 2
    assert "unclean_leader_election" in caught.value.message


def test_of_servers_that_are_both_away_both_are_unknown() -> None:
    away = settings.Settings(bootstrap_servers="127.0.0.1:9", postgres_dsn="postgresql://me@127.0.0.1:9/none")
    kafka, database = judge(server_settings.without_kafka(away), ()).unknown
    assert kafka == "Kafka: it cannot be asked"
    assert database.startswith("PostgreSQL: it does not answer (")


def test_a_cluster_that_names_no_broker_is_unknown() -> None:
    """As for a moment while it starts."""
    described: Future[SimpleNamespace] = Future()
    described.set_result(SimpleNamespace(nodes=[]))
    admin: Any = SimpleNamespace(describe_cluster=lambda request_timeout: described)
    unknown: dict[str, list[str]] = defaultdict(list)
    assert server_settings._transactions_to_be(admin, unknown) == []
    assert unknown == {"Kafka does not say how it is set": [server_settings.TRANSACTIONS]}
