"""How replicas are, by the end of a decision log."""

from collections.abc import Callable
from typing import Any

import pytest

from onefold.cli import shown_status
from onefold.cli.commands import status
from onefold.operate.replicas import RATE_S, RECORDS_MAX, SILENT_S, WINDOW_S, Heard, replicas_of_all, standing
from onefold.operate.settings import Settings
from onefold.processor.core.decision import Kind
from onefold.processor.core.decision_log import Note
from onefold.processor.core.topology import Topology
from onefold.processor.io.proposals import FORMAT, AvroProposals, Head
from tests.support.decisions import note, proposal, told, writer

NOW_S = 1_000_000.0
MakeDomain = Callable[..., Topology]


def heard(*records: tuple[float, Any], partition: int = 0) -> list[Heard]:
    """Records by how many seconds ago they were written."""
    return [Heard(partition, offset, NOW_S - ago_s, said) for offset, (ago_s, said) in enumerate(records)]


@pytest.mark.parametrize("partition", [1, 0], ids=["each a log of its own", "one log for both"])
def test_who_won_how_much_and_who_publishes(partition: int) -> None:
    """Over all tasks, as each replica told last."""
    first = heard((3, told("a", 10, 6, 10, 9, publishes=True)), (2, told("b", 10, 4, 10, 9)))
    second = heard(
        (1, told("b", 5, 5, 5, 5, publishes=True, task=1)), (1, told("a", 4, 0, 4, 4, task=1)), partition=partition
    )
    now = standing([*first, *second], NOW_S)

    assert now is not None
    assert now.unpublished == 1
    a, b = now.replicas["a"], now.replicas["b"]
    assert (a.tasks, a.won, a.decided, a.behind, a.publishes, a.heard_s, a.silent) == (2, 6, 14, 1, 1, 1, False)
    assert (b.tasks, b.won, b.decided, b.behind, b.publishes, b.heard_s, b.silent) == (2, 9, 15, 0, 1, 1, False)


@pytest.mark.parametrize(
    "body",
    [
        {"published": "x"},
        {"replica": 1},
        {"replica": {"version": 3}},
        {"replica": {"version": 3, "won": "x", "decided": 1, "published": 1, "publishes": True}},
    ],
)
def test_a_note_that_says_nothing_is_passed_over(body: dict[str, Any]) -> None:
    now = standing(heard((2, told("a", 10, 6, 10, 9)), (1, Note(0, "b", body))), NOW_S)

    assert now is not None
    assert now.replicas.keys() == {"a"}


def test_a_replica_is_not_behind_because_it_spoke_earlier_in_the_same_second() -> None:
    """It is compared with what was decided just then."""
    now = standing(
        heard((0.9, told("b", 10, 0, 10, 10)), (0.1, Head(0, Kind.STEP, 60)), (0.0, told("a", 61, 61, 61, 9))), NOW_S
    )

    assert now is not None
    assert [one.behind for one in now.replicas.values()] == [0, 0]


def test_a_replica_that_decisions_go_on_without_is_silent() -> None:
    """And publishes nothing, whatever it told last. One that has nothing to tell is not silent."""
    killed = told("b", 100, 50, 100, 100, publishes=True)
    quiet = heard((60, killed), (60, told("a", 100, 50, 100, 100)))
    now = standing(quiet, NOW_S)
    assert now is not None
    assert [(one.silent, one.behind) for one in now.replicas.values()] == [(False, 0), (False, 0)]

    now = standing(heard((SILENT_S + 1, killed), (1, told("a", 130, 80, 130, 100))), NOW_S)
    assert now is not None
    a, b = now.replicas["a"], now.replicas["b"]
    assert (a.silent, b.silent) == (False, True)
    assert (b.behind, b.publishes, b.heard_s) == (30, 0, SILENT_S + 1)
    assert now.unpublished == 30
    gone = standing(heard((WINDOW_S + 1, killed), (1, told("a", 130, 80, 130, 100))), NOW_S)
    assert gone is not None
    assert list(gone.replicas) == ["a"]


def test_decisions_a_second_are_those_of_the_last_seconds() -> None:
    """What was before them does not count; when there was nothing before, only the time that is known does."""
    steady = [(ago, Head(0, Kind.STEP, 1000 - 10 * ago)) for ago in range(20, -1, -1)]
    now = standing(heard(*steady, (0, told("a", 1000, 0, 0, 1000))), NOW_S)
    assert now is not None
    assert now.decisions_a_second == 10

    short = standing(heard((2, Head(0, Kind.STEP, 50)), (0, told("a", 90, 0, 0, 90))), NOW_S)
    assert short is not None
    assert short.decisions_a_second == 20

    stopped = standing(heard((RATE_S + 2, Head(0, Kind.STEP, 50)), (RATE_S + 1, told("a", 90, 0, 0, 90))), NOW_S)
    assert stopped is not None
    assert stopped.decisions_a_second == 0


def test_who_passed_something_on_last_publishes() -> None:
    """Also before either of them has noticed."""
    both = heard(
        (2, told("a", 5, 5, 5, 5, publishes=True)),
        (1, Note(0, "b", {"published": 7})),
        (0.5, told("b", 7, 0, 5, 7, publishes=True)),
    )
    now = standing(both, NOW_S)
    assert now is not None
    assert [one.publishes for one in now.replicas.values()] == [0, 1]
    left = standing([*both, Heard(0, 3, NOW_S, told("b", 7, 0, 5, 7))], NOW_S)
    assert left is not None
    assert [one.publishes for one in left.replicas.values()] == [0, 0]


def test_a_log_that_was_closed_has_no_replicas() -> None:
    """Until it is opened again. A close that lost is none."""
    closed = heard((9, told("a", 7, 1, 7, 7)), (8, Head(0, Kind.CLOSE, 7)), (8, told("a", 8, 1, 7, 7)))
    assert standing(closed, NOW_S) is None
    assert standing(heard(), NOW_S) is None
    assert standing([*closed, Heard(0, 3, NOW_S - 1, Head(0, Kind.OPEN, 20))], NOW_S) is not None
    assert standing(heard((9, told("a", 7, 1, 7, 7)), (8, Head(0, Kind.CLOSE, 7)), (7, Head(0, Kind.STEP, 8))), NOW_S)


def test_a_glance_reads_notes_whole_and_of_proposals_the_head() -> None:
    glance = AvroProposals().glance
    note = told("a", 1, 2, 3, 4)
    assert glance(AvroProposals().encode_note(note)) == note
    assert glance(proposal(17, Kind.CLOSE)) == Head(0, Kind.CLOSE, 17)
    head, whole = proposal(17)[:6], proposal(17)
    assert whole.startswith(head)
    assert glance(head) == glance(whole) == Head(0, Kind.STEP, 17)
    for nothing in (None, b"", b"\x00abc", b"{}", bytes((FORMAT,)), bytes((FORMAT + 1,)) + whole[1:]):
        assert glance(nothing) is None


@pytest.fixture
def log(fresh_domain: MakeDomain, client: dict[str, str]) -> Callable[..., None]:
    """Appends to the decision log of runner."""
    return writer(fresh_domain("runner", 1), client)


def test_the_end_of_the_log_is_read_and_never_all_of_it(log: Callable[..., None], bootstrap_servers: str) -> None:
    """A certain number of records."""
    settings = Settings(bootstrap_servers=bootstrap_servers)
    assert "runner" not in replicas_of_all(settings)
    log(note("first", 900), *(proposal(900) for _ in range(RECORDS_MAX - 2)), note("last", 900))
    found = replicas_of_all(settings)["runner"]
    assert list(found.replicas) == ["first", "last"]
    assert found.replicas["last"].won == 1
    log(proposal(900))
    assert list(replicas_of_all(settings)["runner"].replicas) == ["last"]


def test_large_proposals_are_not_read_far_back(
    log: Callable[..., None], bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log(note("first", 900), *(proposal(900) for _ in range(100)), note("last", 900))
    settings = Settings(bootstrap_servers=bootstrap_servers)
    assert list(replicas_of_all(settings)["runner"].replicas) == ["first", "last"]
    monkeypatch.setattr("onefold.operate.replicas.BYTES_MAX", 1_000)
    assert list(replicas_of_all(settings)["runner"].replicas) == ["last"]


def test_an_end_that_is_long_ago_is_not_read_on(log: Callable[..., None], bootstrap_servers: str) -> None:
    """It is shown, however long nothing has happened."""
    log(note("before", 900), *(proposal(900) for _ in range(500)), ago_s=WINDOW_S + 60)
    log(note("last", 900), ago_s=WINDOW_S + 30)
    assert list(replicas_of_all(Settings(bootstrap_servers=bootstrap_servers))["runner"].replicas) == ["last"]


def test_status_shows_the_replicas_of_a_pipeline(
    log: Callable[..., None], bootstrap_servers: str, database: str
) -> None:
    """In a line each; and to a program all of it."""
    log(note("2", 4), ago_s=SILENT_S + 2)
    log(*(proposal(number) for number in range(4, 11)), note("1", 11))
    settings = Settings(bootstrap_servers=bootstrap_servers, postgres_dsn=database)
    found = status.describe(settings)
    assert found["replicas"]["runner"]["unpublished"] == 0
    assert found["replicas"]["runner"]["replicas"]["1"]["decided"] == 11
    lines = [line for line in shown_status.lines(settings.home, found) if "runner" in line]
    assert [" ".join(line.split()) for line in lines if "replicas" in line] == [
        "replicas of runner 1 decisions a second, 0 versions to publish"
    ]
    well, silent = (line for line in lines if line.startswith("  runner "))
    assert " ".join(well.split()) == "runner 1 1 of 11 accepted proposals, 0 versions behind"
    assert "unresponsive for" in silent
    assert silent.endswith("7 versions behind")


def test_a_kafka_that_does_not_answer_has_no_replicas_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.operate.replicas.CALL_S", 0.5)
    assert replicas_of_all(Settings(bootstrap_servers="127.0.0.1:1")) == {}
