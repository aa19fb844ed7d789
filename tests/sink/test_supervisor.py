"""A query supervisor: what is started again, when, and for how long. With a clock of the test's own."""

from collections.abc import Sequence
from itertools import pairwise

import psycopg
import pytest
from structlog.testing import capture_logs

from onefold.error_codes import Code, CodedError
from onefold.postgres import NoLogin
from onefold.processor.core.errors import Misconfigured, Refused, Retriable
from onefold.spark_sink.errors import Rewind
from onefold.spark_sink.supervisor import QuerySupervisor
from tests.support.clock import Clock
from tests.support.coded import raises

PATIENCE_S = 60.0


class Query:
    """Does as it is told. `starts` holds what each start raises; then it works."""

    def __init__(self) -> None:
        self.name = "made_up"
        self.landed, self.started = 0, 0
        self.starts: Sequence[Exception] = []
        self.trouble: BaseException | None = Retriable(Code.KAFKA_SILENT, "not started yet")
        self.misses: list[Exception] = []
        self.audits = 0

    def start(self) -> None:
        self.started += 1
        self.landed = 0
        if self.starts:
            first, *self.starts = self.starts
            raise first
        self.trouble = None

    def stop(self) -> None:
        self.trouble = Retriable(Code.KAFKA_SILENT, "not started yet")

    def failure(self) -> BaseException | None:
        return self.trouble

    def displaced(self) -> Exception | None:
        self.audits += 1
        if self.misses and isinstance(self.misses[0], psycopg.Error):
            raise self.misses.pop(0)
        return self.misses.pop(0) if self.misses else None


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def query() -> Query:
    return Query()


@pytest.fixture
def supervisor(query: Query, clock: Clock) -> QuerySupervisor:
    return QuerySupervisor(query, PATIENCE_S, clock)


def tick_for(duration_s: float, supervisor: QuerySupervisor, clock: Clock) -> None:
    """Twice a second."""
    end = clock.now + duration_s
    while clock.now < end:
        supervisor.tick()
        clock.now += 0.5


def test_a_query_is_started_once_and_left_alone(supervisor: QuerySupervisor, query: Query, clock: Clock) -> None:
    for _ in range(3):
        supervisor.tick()
        clock.now += 1
    assert (query.started, supervisor.running, supervisor.trouble) == (1, True, None)


def test_a_login_that_postgresql_refuses_ends_a_first_start_and_delays_a_later_one(query: Query, clock: Clock) -> None:
    """A password is renewed on one side first."""
    refuses = [True]

    def lacks() -> str:
        if refuses[0]:
            raise NoLogin('password authentication failed for user "sink_1"')
        return ""

    supervisor = QuerySupervisor(query, PATIENCE_S, clock, lacks)
    with raises(Refused, Code.POSTGRES_LOGIN, "password authentication failed"):
        supervisor.tick()
    refuses[0] = False
    supervisor.tick()
    query.stop()
    supervisor.tick()
    refuses[0] = True
    query.starts = [Retriable(Code.POSTGRES_LOGIN, "Postgres opens no session")]
    tick_for(3, supervisor, clock)
    assert supervisor.running
    assert query.started == 3


@pytest.mark.parametrize(
    "error", [Refused(Code.TOPIC_RECREATED, "another topic"), Misconfigured(Code.SQL_WRONG, "no such column")]
)
def test_what_only_a_person_can_mend_is_raised_at_once(
    supervisor: QuerySupervisor, query: Query, error: CodedError
) -> None:
    supervisor.tick()
    query.trouble = error
    with raises(type(error), error.code, str(error)):
        supervisor.tick()
    assert query.started == 1


@pytest.mark.parametrize(
    "error", [Refused(Code.TOPIC_RECREATED, "another topic"), Misconfigured(Code.SQL_WRONG, "no such column")]
)
def test_what_a_start_refuses_is_raised_at_once(supervisor: QuerySupervisor, query: Query, error: CodedError) -> None:
    query.starts = [error]
    with raises(type(error), error.code, str(error)):
        supervisor.tick()
    assert not supervisor.running


def test_a_query_that_ended_is_started_again_after_a_pause(
    supervisor: QuerySupervisor, query: Query, clock: Clock
) -> None:
    supervisor.tick()
    query.trouble = Rewind(Code.POSITIONS_MOVED, "the ledger is elsewhere")
    supervisor.tick()
    assert (supervisor.running, supervisor.trouble, query.started) == (False, "the ledger is elsewhere", 1)
    clock.now += 0.19
    supervisor.tick()
    assert query.started == 1
    clock.now += 0.02
    supervisor.tick()
    assert (supervisor.running, query.started) == (True, 2)
    assert supervisor.trouble == "the ledger is elsewhere", "until it has landed something"


def test_pauses_double_up_to_two_seconds(supervisor: QuerySupervisor, query: Query, clock: Clock) -> None:
    query.starts = [Retriable(Code.KAFKA_SILENT, "no Kafka")] * 20
    at: list[float] = []
    while len(at) < 7:
        before = query.started
        supervisor.tick()
        if query.started > before:
            at.append(clock.now)
        clock.now += 0.01
    pauses = [second - first for first, second in pairwise(at)]
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 2.0, 2.0], abs=0.02)


@pytest.mark.parametrize(
    ("cause", "longest_s"),
    [(psycopg.errors.ReadOnlySqlTransaction("failover"), 2.0), (psycopg.errors.InternalError_("XX000"), 60.0)],
    ids=["known", "unknown"],
)
def test_what_is_not_known_to_pass_is_tried_again_with_longer_pauses(
    query: Query, clock: Clock, cause: Exception, longest_s: float
) -> None:
    """And its sentence is said meanwhile."""
    supervisor = QuerySupervisor(query, 10_000.0, clock)
    failure = Retriable(Code.KAFKA_SILENT, "Postgres refuses to begin")
    failure.__cause__ = cause
    query.starts = [failure] * 20
    at: list[float] = []
    while len(at) < 12:
        before = query.started
        supervisor.tick()
        if query.started > before:
            at.append(clock.now)
        clock.now += 0.1
    assert at[-1] - at[-2] == pytest.approx(longest_s, abs=0.11)
    assert supervisor.trouble == "Postgres refuses to begin"


def test_what_it_lands_ends_the_trouble_and_the_pauses_are_short_again(
    supervisor: QuerySupervisor, query: Query, clock: Clock
) -> None:
    query.starts = [Retriable(Code.KAFKA_SILENT, "no Kafka")] * 4
    while not supervisor.running:
        supervisor.tick()
        clock.now += 0.1
    assert supervisor.trouble == "no Kafka"
    query.landed = 1
    supervisor.tick()
    assert supervisor.trouble is None
    query.trouble = Rewind(Code.POSITIONS_MOVED, "elsewhere")
    supervisor.tick()
    clock.now += 0.21
    supervisor.tick()
    assert supervisor.running


def test_an_idle_query_is_healthy_when_it_has_gone_on_for_long(
    supervisor: QuerySupervisor, query: Query, clock: Clock
) -> None:
    query.starts = [Retriable(Code.KAFKA_SILENT, "no Kafka")]
    supervisor.tick()
    clock.now += 1
    supervisor.tick()
    assert supervisor.running
    clock.now += 29
    supervisor.tick()
    assert supervisor.trouble == "no Kafka"
    clock.now += 2
    supervisor.tick()
    assert supervisor.trouble is None


def test_it_gives_up_when_patience_is_over_with_the_reason(
    supervisor: QuerySupervisor, query: Query, clock: Clock
) -> None:
    query.starts = [Retriable(Code.KAFKA_SILENT, "no Kafka")] * 1000
    began = clock.now
    with raises(Retriable, Code.GAVE_UP, "made_up", "60"):
        tick_for(10 * PATIENCE_S, supervisor, clock)
    assert PATIENCE_S < clock.now - began < PATIENCE_S + 5


def test_trouble_that_was_got_over_does_not_count(supervisor: QuerySupervisor, query: Query, clock: Clock) -> None:
    """Now and then something fails, for much longer than its patience in all."""
    for _ in range(10):
        query.trouble = Rewind(Code.POSITIONS_MOVED, "elsewhere")
        supervisor.tick()
        clock.now += 10
        supervisor.tick()
        query.landed = 1
        supervisor.tick()
    assert (supervisor.running, supervisor.trouble) == (True, None)


def test_now_and_then_it_asks_whether_postgres_still_holds_what_was_landed(
    supervisor: QuerySupervisor, query: Query, clock: Clock
) -> None:
    supervisor.tick()
    assert query.audits == 0
    for _ in range(10):
        supervisor.tick()
        clock.now += 0.5
    assert query.audits == 1
    query.misses = [Rewind(Code.POSITIONS_MOVED, "a backup was restored")]
    clock.now += 5
    supervisor.tick()
    assert (supervisor.running, supervisor.trouble) == (False, "a backup was restored")
    supervisor.tick()
    assert query.audits == 2, "one that does not run is not asked"


def test_a_postgres_that_does_not_answer_is_no_reason_to_go_back(supervisor: QuerySupervisor, query: Query) -> None:
    query.misses = [psycopg.OperationalError("away")]
    supervisor.tick()
    supervisor.tick()
    assert query.audits == 1
    assert (supervisor.running, supervisor.trouble) == (True, None)


def test_a_reason_is_logged_once_and_what_nobody_expected_with_its_story(
    supervisor: QuerySupervisor, query: Query, clock: Clock
) -> None:
    query.starts = [Retriable(Code.KAFKA_SILENT, "no Kafka")] * 3 + [Retriable(Code.KAFKA_SILENT, "no Postgres")]
    with capture_logs() as logged:
        while not supervisor.running:
            supervisor.tick()
            clock.now += 1
    assert [line["event"] for line in logged if line["log_level"] == "warning"] == [
        "made_up: no Kafka; starting again from Postgres",
        "made_up: no Postgres; starting again from Postgres",
    ]
    assert not any(line.get("exc_info") for line in logged)
    query.trouble = bug = ZeroDivisionError("a bug")
    with capture_logs() as logged:
        supervisor.tick()
    assert logged[-1]["exc_info"] is bug
