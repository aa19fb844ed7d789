"""Metrics and health of the whole, as the dashboard tells them."""

import asyncio
import gc
from collections.abc import Callable, Mapping
from threading import Event
from types import SimpleNamespace

import psycopg
import pytest
from confluent_kafka import KafkaException
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from onefold.config.settings import Settings
from onefold.dashboard import observer
from onefold.dashboard.known import Asked
from onefold.dashboard.movement import Seen
from onefold.dashboard.observer import NOTHING, Looked, Observer, Offsets
from onefold.dashboard.snapshot import LagNow
from onefold.dashboard.totals import Totals
from onefold.error_codes import Code
from onefold.operate import pipelines, positions
from onefold.operate.held import Held
from onefold.operate.lag import UNKNOWN, Lag
from onefold.operate.positions import Place
from onefold.processor import loading
from onefold.processor.core.errors import Retriable
from onefold.processor.io import admin
from onefold.processor.io.admin import Standing
from onefold.telemetry import HELD_S, LAG_EVENTS, LAG_S, LAG_TO_FOLD, LAG_TO_LAND, METRICS
from tests.support.clock import Clock
from tests.support.site import Site
from tests.support.told import families
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("unhealthy-is-said")

AWAY = "Kafka does not answer"


class Shown:
    """Totals, and what they see."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pipelines, "domains", lambda: ["orders"])
        self.clock = Clock()
        self.observer = Observer(Settings(), "", self.clock)
        self.totals = Totals(self.observer, Settings().stall_s, self.clock)
        self.totals._told.health._clock = self.clock

    def trouble(self, to_fold: int | None, to_land: int | None, landed: int | None, problem: str = "") -> str:
        """After 40 more seconds: what is wrong, with what is seen then."""
        return self.after({} if problem else {"orders": Seen(to_fold, to_land, landed)}, problem)

    def lag(self) -> dict[str, float]:
        """How far behind it is told to be, by what is told of it."""
        shown = text_string_to_metric_families(self.totals._told.metrics().decode())
        return {one.name: one.value for family in shown for one in family.samples if one.name in (LAG_EVENTS, LAG_S)}

    def after(self, found: Mapping[str, Seen], problem: str) -> str:
        """The same of what is found."""
        self.clock.now += 40
        self.observer.take(Offsets({}, found, problem))
        self.totals.tell()
        return self.totals._told.health.trouble()

    def look(self, lags: dict[str, Lag] | None = None, held: dict[str, list[Held]] | None = None) -> None:
        """Tell what takes longer to find out."""
        self.observer.looked = behind(lags or {}, held)
        self.totals.tell()


def behind(lags: dict[str, Lag], held: dict[str, list[Held]] | None = None) -> Looked:
    return Looked(Asked(LagNow(lags, None, None)), held)


class Away:
    """What `ask` finds when a server does not answer, of pipelines whose servers are none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.error: psycopg.Error = psycopg.OperationalError("connection refused")
        self.questions = 0
        monkeypatch.setattr(loading, "load_topology", lambda name: SimpleNamespace(name=name))
        monkeypatch.setattr(observer, "_ledger", self._landed)
        monkeypatch.setattr(positions, "landed", self._landed)
        self.domains("orders")
        self.missing({})

    def asked(self) -> tuple[Mapping[str, Seen], str]:
        settings = Settings(bootstrap_servers="nowhere:1", postgres_dsn="host=nowhere")
        found = Observer(settings, "host=nowhere")._ask()
        return found.seen, found.problem

    def domains(self, *names: str) -> None:
        self._patch.setattr(pipelines, "domains", lambda: list(names))
        self._patch.setattr(pipelines, "found", lambda: {name: name for name in names})

    def missing(self, topics: dict[str, list[str]] | None) -> None:
        self._patch.setattr(positions, "missing_topics", lambda settings: topics)

    def kafka(self, answer: dict[Place, Standing] | Exception) -> None:
        """What the changelog says, or why it does not."""

        def standing(*_: object) -> dict[Place, Standing]:
            if isinstance(answer, Exception):
                raise answer
            return answer

        self._patch.setattr(admin, "standing", standing)

    def _landed(self, *_: object) -> dict[Place, int]:
        self.questions += 1
        raise self.error


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Away:
    return Away(monkeypatch)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Shown:
    return Shown(monkeypatch)


def test_what_is_drained_is_well(looked: Shown) -> None:
    assert [looked.trouble(0, 0, 5) for _ in range(4)] == [""] * 4


def test_events_that_nobody_folds(looked: Shown) -> None:
    """More and more of them come, and that is no progress."""
    told = [looked.trouble(waiting, 0, 5) for waiting in (0, 3, 4, 5)]
    assert told == ["", "", "", "orders to process: no progress for 80 s: 5 offsets wait"]
    assert looked.trouble(4, 0, 5) == ""


def test_a_backlog_that_grows_although_it_is_folded(looked: Shown) -> None:
    assert [looked.trouble(100 * n, 0, 10 * n) for n in range(1, 6)] == [""] * 5


def test_events_that_nobody_lands(looked: Shown) -> None:
    """While the processor goes on."""
    told = [looked.trouble(1, waiting, 5) for waiting in (0, 3, 6, 9)]
    assert told[-1] == "orders to write: no progress for 80 s: 9 offsets wait"
    assert looked.trouble(1, 12, 6) == ""


def test_what_cannot_be_known_is_no_health(looked: Shown) -> None:
    looked.trouble(0, 0, 5)
    assert looked.trouble(None, None, None, AWAY) == ""
    assert looked.trouble(None, None, None, AWAY) == (
        "orders to process: no progress for 80 s: Kafka does not answer; "
        "orders to write: no progress for 80 s: Kafka does not answer"
    )
    assert looked.trouble(None, None, None) == ""  # Kafka answers, and this pipeline has no topics
    shown = looked.totals._told.metrics().decode()
    assert f'{LAG_TO_FOLD}{{domain="orders"}} NaN' in shown
    looked.trouble(7, 3, 5)
    assert f'{LAG_TO_LAND}{{domain="orders"}} 3.0' in looked.totals._told.metrics().decode()


def test_while_postgresql_is_away_it_is_red_after_the_usual_time(looked: Shown, away: Away) -> None:
    """A moment without it is no alarm; and when it is back and everything has landed, it is well at once."""
    away.kafka({("orders.events", 0): Standing(5, 5)})
    looked.trouble(0, 0, 5)
    assert looked.after(*away.asked()) == ""
    assert looked.after(*away.asked()) == "orders to write: no progress for 80 s: PostgreSQL does not answer"
    assert looked.totals._told.healthz()[0] == 503
    assert looked.trouble(0, 0, 9) == ""


def test_a_changelog_that_cannot_be_read_is_no_health(looked: Shown, away: Away) -> None:
    away.kafka(Retriable(Code.KAFKA_SILENT, "the end of orders.changelog cannot be read"))
    looked.trouble(0, 0, 5)
    assert looked.after(*away.asked()) == ""
    assert "orders to process: no progress for 80 s: the end of orders.changelog cannot be read" in looked.after(
        *away.asked()
    )


@pytest.mark.slow  # waits for the reason that librdkafka gives
def test_a_kafka_that_does_not_answer_is_no_missing_topic(looked: Shown, away: Away) -> None:
    looked.trouble(0, 0, 5)
    away.missing(None)
    assert away.asked() == ({}, "Kafka at nowhere:1 does not resolve: Name or service not known")
    away.missing({"orders": ["orders.events"]})
    assert away.asked() == ({}, "")


def test_a_database_that_does_not_answer_is_waited_for_once(away: Away) -> None:
    """Whoever asks would have gone before the last pipeline had waited. To be refused is another matter."""
    away.kafka({})
    away.domains("orders", "mails")
    found, _ = away.asked()
    assert [one.no_land for one in found.values()] == ["PostgreSQL does not answer"] * 2
    assert away.questions == 1
    away.error = psycopg.errors.InsufficientPrivilege("permission denied for table ledger")
    found, _ = away.asked()
    assert found["mails"].no_land == "PostgreSQL refuses: permission denied for table ledger"


def test_lag_is_told_in_events_and_in_seconds(looked: Shown) -> None:
    """As a person means it: to the database. What is unknown is absent, and no old figure stays."""
    assert looked.lag() == {}
    looked.look({"orders": Lag(3, 1.5, 4, 70.0)})
    assert looked.lag() == {LAG_EVENTS: 7, LAG_S: 70.0}
    looked.look({"orders": Lag(3, None, 0, 0.0)})
    assert looked.lag() == {LAG_EVENTS: 3}
    several: tuple[dict[str, Lag], ...] = ({"orders": UNKNOWN}, {})
    for unknown in several:
        looked.look({"orders": Lag(0, 0.0, 0, 0.0)})
        assert looked.lag() == {LAG_EVENTS: 0, LAG_S: 0}
        looked.look(unknown)
        assert looked.lag() == {}


def test_what_an_open_transaction_hides_is_no_health(looked: Shown) -> None:
    """There is no lag then, and nothing that could move."""

    def hold(age_s: float) -> None:
        one = Held("orders.totals", 1, 7, 12, "processor-1", age_s)
        looked.look({"orders": Lag(0, 0.0, 0, 0.0)}, {"orders": [one, one._replace(age_s=11.0)]})

    def told() -> tuple[int, str, list[str]]:
        shown = [line for line in looked.totals._told.metrics().decode().splitlines() if line.startswith(HELD_S)]
        return (*looked.totals._told.healthz(), shown)

    assert looked.trouble(0, 0, 5) == ""
    hold(20.0)
    status, _, shown = told()
    assert (status, shown) == (200, [f'{HELD_S}{{domain="orders"}} 20.0']), "it may still be a transaction as any other"
    hold(600.0)
    status, text, shown = told()
    assert (status, shown) == (503, [f'{HELD_S}{{domain="orders"}} 600.0'])
    assert text == (
        "orders: orders.totals/1 at offset 7: the transaction of processor-1 is open for 600 s and blocks 12 offsets"
    )
    looked.look()
    assert told()[::2] == (503, []), "who does not know whether it has ended does not call it well"
    looked.look(held={"orders": []})
    assert told()[::2] == (200, [f'{HELD_S}{{domain="orders"}} 0.0'])


def test_a_scrape_waits_for_no_long_look_at_what_is_behind(looked: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one has what was found; meanwhile nobody looks a second time."""
    monkeypatch.setattr(observer, "LOOK_S", 0.01)
    begun, found, looks = Event(), Event(), []

    def look(_: Offsets) -> Looked:
        looks.append(1)
        begun.set()
        assert found.wait(20)
        return behind({"orders": Lag(2, 9.0, 0, 0.0)})

    async def scrape() -> None:
        for _ in range(2):
            await looked.observer._round()
            looked.totals.tell()
        assert await asyncio.to_thread(begun.wait, 20)
        assert (looked.lag(), len(looks)) == ({}, 1)
        found.set()
        assert looked.observer._looking is not None
        await looked.observer._looking
        looked.totals.tell()
        assert looked.lag() == {LAG_EVENTS: 2, LAG_S: 9.0}

    monkeypatch.setattr(looked.observer, "_ask", lambda: Offsets({}, {}))
    monkeypatch.setattr(looked.observer, "_look", look)
    asyncio.run(scrape())


def test_health_is_told_while_a_server_hangs(looked: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """To everybody who asks, within a bound; with the same patience as for a server that is away, and the reason."""
    monkeypatch.setattr(observer, "ANSWER_S", 0.05)
    thawed, questions = Event(), []

    def ask_one_that_hangs() -> Offsets:
        questions.append(1)
        assert thawed.wait(20)
        return Offsets({}, {"orders": Seen(0, 0, 5)})

    async def told() -> tuple[int, str]:
        answer = await looked.totals.healthz(Request({"type": "http"}))
        return answer.status_code, bytes(answer.body).decode()

    async def scrape() -> None:
        running = asyncio.create_task(looked.observer.run())
        assert [status for status, _ in await asyncio.gather(*(told() for _ in range(3)))] == [200] * 3
        assert f'{LAG_TO_FOLD}{{domain="orders"}} NaN' in looked.totals._told.metrics().decode()
        assert looked.lag() == {}
        looked.clock.now += 70
        status, text = await told()
        assert (status, len(questions)) == (503, 1)
        assert "orders to write: no progress for 70 s: Kafka or PostgreSQL has not answered for 70 s" in text
        monkeypatch.setattr(observer, "ANSWER_S", 20.0)
        thawed.set()
        assert await told() == (200, "everything moves, or has nothing to do\n")
        running.cancel()

    monkeypatch.setattr(looked.observer, "_ask", ask_one_that_hangs)
    monkeypatch.setattr(looked.observer, "_look", lambda _: NOTHING)
    asyncio.run(scrape())


def test_a_pipeline_that_moved_before_is_waited_for_from_then_on(looked: Shown) -> None:
    """What hangs is no movement; nor is what was seen before forgotten."""
    looked.observer.take(Offsets({}, {"orders": Seen(5, 0, 5)}))
    looked.clock.now += 50
    looked.observer.asking_since = looked.clock.now
    looked.clock.now += 20
    looked.totals.tell(answered=False)
    assert "orders to process: no progress for 70 s: Kafka or" in looked.totals._told.health.trouble()
    assert looked.after({"orders": Seen(4, 0, 5)}, "") == ""


def test_nothing_is_asked_while_nobody_wants_to_know(looked: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first question on all who ask share the rounds. Of what was seen long ago nobody knows what has moved since."""
    monkeypatch.setattr(observer, "EVERY_S", 0.01)
    questions: list[float] = []

    def ask() -> Offsets:
        questions.append(looked.clock.now)
        return Offsets({}, {"orders": Seen(5, 0, 5)})

    async def watch() -> None:
        running = asyncio.create_task(looked.observer.run())
        await asyncio.to_thread(int)  # the task has begun when that has ended
        assert questions == []
        assert all(await asyncio.gather(*(looked.observer.recent() for _ in range(3))))
        await asyncio.to_thread(eventually, lambda: len(questions) > 2, 20, "it goes on by itself")
        looked.clock.now += observer.WANTED_S + 1
        await asyncio.to_thread(eventually, lambda: not looked.observer._wanted.is_set(), 20, "nobody wants to know")
        before = len(questions)
        assert await looked.observer.recent()
        assert len(questions) > before
        looked.totals.tell()
        assert looked.totals._told.health.trouble() == "", "it may have moved meanwhile"
        running.cancel()

    monkeypatch.setattr(looked.observer, "_ask", ask)
    monkeypatch.setattr(looked.observer, "_look", lambda _: NOTHING)
    asyncio.run(watch())


def test_an_oldest_record_that_gets_younger_is_progress(looked: Shown) -> None:
    """Of a backlog that stays as large as it is."""
    for _ in range(2):
        looked.trouble(5, 0, 5)
        looked.observer.movement.oldest("orders", 7.0)
    assert looked.trouble(5, 0, 5) != ""
    looked.observer.movement.oldest("orders", 9.0)
    looked.totals.tell()
    assert looked.totals._told.health.trouble() == ""


@pytest.mark.parametrize("error", [psycopg.OperationalError("gone"), KafkaException("gone"), RuntimeError("a bug")])
def test_whatever_goes_wrong_is_unknown_and_no_trace(
    looked: Shown, capsys: pytest.CaptureFixture[str], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found before does not stay as if it were true now."""

    def fails(*_: object) -> Looked:
        raise error

    async def scrape(ask: Callable[[], Offsets]) -> None:
        monkeypatch.setattr(looked.observer, "_ask", ask)
        looked.look({"orders": Lag(2, 9.0, 0, 0.0)})
        looked.clock.now += 40
        await looked.observer._round()
        looked.totals.tell()
        assert looked.lag() == {}

    def asks() -> Offsets:
        raise error

    monkeypatch.setattr(looked.observer, "_look", fails)
    for ask_so in (lambda: Offsets({}, {"orders": Seen(0, 0, 5)}), asks, asks):
        asyncio.run(scrape(ask_so))
    gc.collect()  # of a task whose error nobody has taken, Python says so when it goes
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    assert "what is behind cannot be looked at" in said.out
    assert "orders to process: no progress for 80 s: " in looked.totals._told.health.trouble()


def test_they_are_on_the_page_s_own_address(site: Site) -> None:
    status, text = site.get("/metrics")
    assert (status, families(text)) == (
        200,
        {one.name: one.kind for one in METRICS if one.service in ("", "dashboard")},
    )
    assert site.get("/healthz") == (200, "everything moves, or has nothing to do\n")
    assert site.get("/metrics", Host="elsewhere.example")[0] == 400
