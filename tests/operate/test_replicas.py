"""How replicas are, by the end of a decision log."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from onefold.cli import shown_status
from onefold.cli.commands import status
from onefold.config.settings import Settings
from onefold.operate.replicas import (
    BYTES_MAX,
    RATE_S,
    RECORDS_MAX,
    WINDOW_S,
    LogRecord,
    ReplicaNow,
    ReplicasNow,
    replicas_of_all,
    summary,
)
from onefold.processor.core.decision import Proposal, ProposalKind
from onefold.processor.core.decision_log import StatusRecord
from onefold.processor.core.topology import Topology
from onefold.processor.io.proposals import FORMAT, MsgpackProposals
from tests.support.decisions import proposal, published, status_note, writer
from tests.support.previous_proposals import PreviousProposals

NOW_S = 1_000_000.0
MakeDomain = Callable[..., Topology]


def proposed(version: int, name: str = "a", kind: ProposalKind = ProposalKind.STEP, task: int = 0) -> Proposal:
    return Proposal(task, version, {}, name, kind=kind)


def passed_on(version: int, name: str, task: int = 0) -> StatusRecord:
    """A publisher's note."""
    return StatusRecord(task, name, {"published": version})


def summed(*records: tuple[float, Any]) -> ReplicasNow | None:
    """Of records by how many seconds ago they were written."""
    return summary([LogRecord(NOW_S - ago_s, content) for ago_s, content in records], NOW_S)


def test_whose_proposals_were_accepted_and_who_publishes() -> None:
    """Over all tasks. Of two proposals that continue the same version the first one is accepted."""
    now = summed(
        (4, proposed(7, "a")), (4, proposed(7, "b")), (3, proposed(8, "a")), (3, proposed(7, "b")), (2, passed_on(8, "b")),
        (2, proposed(3, "b", task=1)), (1, passed_on(4, "a", task=1)),
    )  # fmt: skip

    assert now is not None
    assert (now.decisions, now.unpublished) == (3, 1)
    assert now.replicas == {"a": ReplicaNow(2, 1, 1.0), "b": ReplicaNow(1, 1, 2.0)}


def test_before_anything_is_published_it_is_unknown_how_much_waits() -> None:
    now = summed((1, proposed(7)))
    assert now is not None
    assert now.unpublished is None


@pytest.mark.parametrize("body", [{"published": "x"}, {"published": True}, {"replica": 1}, {"left": {"to": "a"}}, {}])
def test_a_note_that_says_nothing_is_a_record_alone(body: dict[str, Any]) -> None:
    now = summed((3, proposed(7)), (2, passed_on(8, "a")), (1, StatusRecord(0, "b", body)))

    assert now is not None
    assert (now.decisions, now.unpublished) == (1, 0)
    assert now.replicas == {"a": ReplicaNow(1, 1, 2.0), "b": ReplicaNow(0, 0, 1.0)}


def test_status_notes_of_older_versions_are_ignored() -> None:
    """A rolling upgrade has them beside proposals of both; an old log has them as well."""
    now = summed(
        (9, status_note("old", 900)), (4, proposed(7, "new")), (3, status_note("old", 7)), (2, passed_on(8, "new")),
        (1, status_note("old", 12)),
    )  # fmt: skip

    assert now is not None
    assert (now.decisions, now.unpublished) == (1, 0)
    assert now.replicas == {"new": ReplicaNow(1, 1, 2.0), "old": ReplicaNow(0, 0, 1.0)}


def test_decisions_a_second_are_those_of_the_last_seconds() -> None:
    """What was before them does not count; when there was nothing before, only the time that is known does."""
    steady = summed(*[(ago_s, passed_on(1000 - 10 * ago_s, "a")) for ago_s in range(20, -1, -1)])
    assert steady is not None
    assert steady.decisions_a_second == 10

    short = summed((2, passed_on(50, "a")), (0, passed_on(90, "a")))
    assert short is not None
    assert short.decisions_a_second == 20

    stopped = summed((RATE_S + 2, passed_on(50, "a")), (RATE_S + 1, passed_on(90, "a")))
    assert stopped is not None
    assert stopped.decisions_a_second == 0


def test_the_last_one_that_published_publishes() -> None:
    now = summed((3, proposed(7)), (2, passed_on(7, "a")), (1, passed_on(8, "b")))
    assert now is not None
    assert [one.publishes for one in now.replicas.values()] == [0, 1]


def test_a_log_that_was_closed_has_no_replicas() -> None:
    """Until it is opened again. A close that was rejected is none."""
    closed = (9, proposed(6)), (8, proposed(7, kind=ProposalKind.CLOSE)), (8, passed_on(8, "a"))
    assert summed() is None
    assert summed(*closed) is None
    assert summed(*closed, (1, proposed(20, kind=ProposalKind.OPEN))) is not None
    assert summed((9, proposed(7)), (8, proposed(7, kind=ProposalKind.CLOSE))) is not None


@pytest.fixture
def log(fresh_domain: MakeDomain, client: dict[str, str]) -> Callable[..., None]:
    """Appends to the decision log of runner."""
    return writer(fresh_domain("runner", 1), client)


def test_the_end_of_the_log_is_read_and_never_all_of_it(log: Callable[..., None], bootstrap_servers: str) -> None:
    """A certain number of records."""
    settings = Settings(bootstrap_servers=bootstrap_servers)
    assert "runner" not in replicas_of_all(settings)
    log(published("first", 900), *(proposal(900) for _ in range(RECORDS_MAX - 2)), published("last", 900))
    assert list(replicas_of_all(settings)["runner"].replicas) == ["a", "first", "last"]
    log(proposal(900))
    assert list(replicas_of_all(settings)["runner"].replicas) == ["a", "last"]


def test_large_proposals_are_not_read_far_back(log: Callable[..., None], bootstrap_servers: str) -> None:
    log(published("first", 900), *(proposal(900) for _ in range(100)), published("last", 900))
    settings = Settings(bootstrap_servers=bootstrap_servers)
    assert list(replicas_of_all(settings)["runner"].replicas) == ["a", "first", "last"]
    log(*(proposal(900, size=BYTES_MAX // 70) for _ in range(100)), published("later", 900))
    assert list(replicas_of_all(settings)["runner"].replicas) == ["a", "later"]


def test_an_end_that_is_long_ago_is_not_read_on(log: Callable[..., None], bootstrap_servers: str) -> None:
    """It is shown, however long nothing has happened."""
    log(published("before", 900), *(proposal(900) for _ in range(500)), ago_s=WINDOW_S + 60)
    log(published("last", 900), ago_s=WINDOW_S + 30)
    assert list(replicas_of_all(Settings(bootstrap_servers=bootstrap_servers))["runner"].replicas) == ["a", "last"]


def test_records_of_other_versions_are_no_trouble(log: Callable[..., None], bootstrap_servers: str) -> None:
    """Those of 0.2 count in a rolling upgrade. Bytes of a newer version, or of none, are left out."""
    newer = bytes((FORMAT + 1,)) + proposal(905)[1:]
    log(PreviousProposals().encode_note(passed_on(900, "old")), newer, b"\x00", b"", proposal(900, name="new"))
    found = replicas_of_all(Settings(bootstrap_servers=bootstrap_servers))["runner"]
    assert (list(found.replicas), found.unpublished) == (["new", "old"], 1)


def test_status_shows_the_replicas_of_a_pipeline(
    log: Callable[..., None], bootstrap_servers: str, database: str
) -> None:
    """In a line each; and to a program all of it."""
    log(MsgpackProposals().encode_note(status_note("2", 900)), proposal(3, name="2"), ago_s=12)
    log(*(proposal(version, name="1") for version in range(4, 11)), published("1", 11))
    settings = Settings(bootstrap_servers=bootstrap_servers, postgres_dsn=database)
    found = status.describe(settings)
    assert found["replicas"]["runner"]["unpublished"] == 0
    assert found["replicas"]["runner"]["replicas"]["1"]["accepted"] == 7
    lines = [" ".join(line.split()) for line in shown_status.lines(settings.home, found) if "runner" in line]
    assert "replicas of runner 1 decisions a second, 0 versions to publish" in lines
    one, other = (line.rsplit(",", 1) for line in lines if "recent decisions" in line)
    assert (one[0], other[0]) == (
        "runner 1 7 of 8 recent decisions, publishes 1 task",
        "runner 2 1 of 8 recent decisions",
    )
    assert re.fullmatch(r" last record \d+ s ago", other[1])


def test_a_kafka_that_does_not_answer_has_no_replicas_to_show() -> None:
    assert replicas_of_all(Settings(bootstrap_servers="127.0.0.1:1"), timeout_s=0.5) == {}
