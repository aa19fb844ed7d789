"""States on disk, in simulation: killed at every step, cut off from power, torn, foreign, and two who want the same files."""

import json
from functools import partial
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.errors import Damaged, Refused
from onefold.processor.core.steps import DISK_STEPS, STEPS
from onefold.processor.core.topology import PROGRESS_KEY
from onefold.processor.core.values import Record
from onefold.processor.loading import topology_of
from onefold.processor.runtime.checkpoint import VERSION
from onefold.processor.runtime.state_manager import StateManager
from onefold.processor.runtime.state_store import CHECKPOINT, STATE, DiskStateStore, MemoryStateStore
from onefold.processor.testing import SimulatedSession, TopologyDriver
from tests.simulation.test_crashes import CAMPAIGNS_INPUT, RUNNER_INPUT, feed, outcome, update
from tests.support.coded import raises
from tests.support.crashes import crashed_at_every_hit
from tests.support.disk_driver import DiskDriver
from tests.support.simulated_disk import SimulatedDisk, SimulatedFiles

pytestmark = pytest.mark.promise("states-on-disk")

RUNNER, CAMPAIGNS = topology_of("runner"), topology_of("campaigns")
# Of memory: one of these states fits, and the second does not.
SMALL = 600
DAY_S = 86_400.0


def send(driver: DiskDriver, *users: int, sequence: int = 1) -> None:
    for user in users:
        driver.send("runner.updates", update(user, sequence, 10, 1000 * sequence))
    driver.run()


def stored(driver: DiskDriver, name: str = "runner/0") -> dict[bytes, bytes | None]:
    return {key: value for write in driver.files.writes[name] for key, value in write}


def why(driver: DiskDriver) -> str:
    return driver.task().kept.why


@pytest.mark.parametrize("memory_bytes", [0, SMALL], ids=["disk", "outgrown"])
@pytest.mark.parametrize("step", [*STEPS, *DISK_STEPS])
def test_a_crash_at_any_step_leaves_no_trace(step: str, memory_bytes: int) -> None:
    """Also when the states come to disk in the middle of it; and when the power went, and writes with it."""
    undisturbed = TopologyDriver(RUNNER, partitions=2)
    feed(undisturbed, RUNNER_INPUT)
    expected = outcome(undisturbed)
    make = partial(DiskDriver, RUNNER, memory_bytes, partitions=2)
    for where, driver in crashed_at_every_hit(step, make, partial(feed, inputs=RUNNER_INPUT)):
        assert driver.files.writes, "they came to disk"
        assert expected == outcome(driver), where
        driver.files.cut_power(writes=2)
        driver.kill()
        assert expected["states"] == driver.states(), where


def test_forgotten_keys_stay_forgotten_over_a_restart() -> None:
    """Of what deletes a key the files know nothing yet: the changelog behind their checkpoint says it."""
    undisturbed, driver = TopologyDriver(CAMPAIGNS), DiskDriver(CAMPAIGNS)
    for one in (undisturbed, driver):
        feed(one, CAMPAIGNS_INPUT)
    driver.files.cut_power(writes=3)
    driver.kill()

    assert driver.states() == undisturbed.states()


def test_only_what_came_after_the_checkpoint_is_read() -> None:
    """That is why a start takes seconds."""
    driver = DiskDriver(RUNNER)
    send(driver, *range(50))
    driver.kill()
    driver.task()
    start: list[int | None] = []
    restore = SimulatedSession.restore

    def watched(self: Any, *, stable: bool = False, **more: Any) -> Any:
        start.append(more.get("start"))
        return restore(self, stable=stable, **more)

    driver.kill()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedSession, "restore", watched)
        task = driver.task()
    end = driver.log.identity("runner.changelog", 0).end

    assert task.kept.kind == "disk"
    assert task.kept.why.endswith("gone on from their checkpoint")
    assert start[0] is None, "the last progress, which is read first"
    assert start[-1] is not None
    assert end - start[-1] < 10
    assert len(list(task.store.items())) == 50


def test_states_go_to_disk_when_they_are_too_many_and_stay_there() -> None:
    """And it is said where they are, and why."""
    driver = DiskDriver(RUNNER, SMALL)
    send(driver, 1)
    assert isinstance(driver.task().store, MemoryStateStore)
    assert driver.task().kept == ("memory", "less than 0 MB each")
    send(driver, 2, 3, 4, 5, 6, 7)
    assert isinstance(driver.task().store, DiskStateStore)
    assert why(driver) == "more than 0 MB, taken there while it ran"
    driver.kill()
    assert isinstance(driver.task().store, DiskStateStore)
    assert why(driver) == "more than 0 MB, gone on from their checkpoint"
    driver.files.writes.clear()
    driver.kill()
    assert why(driver) == "more than 0 MB, restored from the changelog"


def test_markers_at_the_end_of_an_input_take_the_checkpoint_along() -> None:
    """Else a start would read the changelog of each transaction that has markers alone."""
    driver = DiskDriver(RUNNER)
    send(driver, 1)
    epoch = driver.log.init("somebody")
    driver.log.write("somebody", epoch, "runner.updates", 0, b"k", b"v", ())
    driver.log.end("somebody", epoch, commit=False)
    driver.run()

    found = json.loads(stored(driver)[CHECKPOINT] or b"")
    assert found["next"] == driver.log.identity("runner.changelog", 0).end - 1  # its marker
    assert json.loads(found["progress"])["inputs"]["runner.updates"]["next_offset"] == 3


def spoil(driver: DiskDriver, **changes: Any) -> None:
    """Another checkpoint beside states that nobody may believe."""
    write = driver.files.writes["runner/0"]
    found = json.loads(stored(driver)[CHECKPOINT] or b"")
    write.append([(STATE + b"999", b"{"), (CHECKPOINT, json.dumps({**found, **changes}).encode())])


@pytest.mark.promise("damaged-state-files")
@pytest.mark.parametrize(
    "changes",
    [
        {"version": VERSION + 1},
        {"version": None},
        {"topic_id": "another"},
        {"partition": 1},
        {"next": 1 << 40},
        {"next": "x"},
        {"progress": "{"},
        {"at_s": 1e12},
    ],
    ids=str,
)
def test_files_that_do_not_belong_here_are_made_anew(changes: dict[str, Any]) -> None:
    """Too new, of another changelog, of a time that has not come, or damaged where only we can see it."""
    driver = DiskDriver(RUNNER)
    send(driver, 1, 2)
    expected = driver.states()
    spoil(driver, **changes)
    driver.kill()

    assert driver.states() == expected
    assert why(driver).endswith("restored from the changelog")


@pytest.mark.parametrize("disturb", ["torn", "checkpoint", "junk"])
def test_files_that_are_none_are_made_anew(disturb: str) -> None:
    """Noticed by the engine, or by a checkpoint that is missing or that cannot be read."""
    driver = DiskDriver(RUNNER)
    send(driver, 1, 2)
    expected = driver.states()
    files = driver.files
    if disturb == "torn":
        files.torn.add("runner/0")
    else:
        files.writes["runner/0"].append([(CHECKPOINT, None if disturb == "checkpoint" else b"\x00")])
    driver.kill()

    assert driver.states() == expected
    assert why(driver).endswith("restored from the changelog")


@pytest.mark.promise("damaged-state-files")
def test_old_files_are_made_anew() -> None:
    """Kafka forgets what deleted a key: a state that was deleted meanwhile would come to life again."""
    driver = DiskDriver(RUNNER)
    driver.wall_s = 1_000_000.0
    send(driver, 1, 2)
    driver.kill()
    driver.wall_s += DAY_S / 2 - 1
    assert why(driver).endswith("gone on from their checkpoint")
    driver.kill()
    driver.wall_s += DAY_S / 2 + 2
    assert why(driver).endswith("restored from the changelog")


def test_a_changelog_that_was_made_again_is_not_gone_on_from() -> None:
    """As after a reset."""
    driver = DiskDriver(RUNNER)
    send(driver, 1, 2)
    driver.kill()
    for topic in ("runner.changelog", "runner.updates"):
        driver.log.create(topic, 1)

    assert driver.states() == {}


def test_a_changelog_that_lost_transactions_is_not_gone_on_from() -> None:
    """The files know of one that the log has not: what nobody reads there must not count here."""
    driver = DiskDriver(RUNNER)
    send(driver, 1)
    before = driver.records("runner.changelog")
    send(driver, 2)
    driver.kill()
    log, changelog = driver.log, driver.log._topics["runner.changelog"]
    changelog.partitions[0].clear()
    last = [value for key, value, _ in before if key == PROGRESS_KEY][-1]
    for key, value, _ in before[:-1]:
        log.append("runner.changelog", key, value, partition=0)
    for _ in range(20):
        log.append("runner.changelog", PROGRESS_KEY, last, partition=0)

    assert set(driver.states()) == {"1"}


@pytest.mark.promise("one-owner-of-state-files")
def test_who_comes_while_another_has_the_files_gets_its_own() -> None:
    """A zombie still has them open, and writes to them what it knows; its successor never sees that."""
    driver = DiskDriver(RUNNER)
    send(driver, 1, 2)
    zombie = driver.task()
    driver._tasks.clear()  # it hangs: nobody has closed it
    send(driver, 3)
    assert set(driver.files.writes) == {"runner/0", "runner/0+"}
    assert why(driver).endswith("restored from the changelog")
    zombie.abandon()
    driver.kill()

    assert set(driver.states()) == {"1", "2", "3"}
    assert why(driver).endswith("gone on from their checkpoint")


def test_a_disk_that_fails_costs_a_restart_and_no_answer() -> None:
    """The transaction is true already: the files are dropped, and made anew."""
    driver = DiskDriver(RUNNER)
    send(driver, 1)
    task = driver.task()
    driver.send("runner.updates", update(2, 1, 10, 0))

    def full(changes: object) -> None:
        raise Damaged(Code.STATES_DAMAGED, "no space is left")

    assert isinstance(task.store, DiskStateStore)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task.store._engine, "write", full)
        with pytest.raises(Damaged):
            task.turn()
    task.close()
    driver._tasks.clear()

    assert set(driver.states()) == {"1", "2"}
    assert why(driver).endswith("restored from the changelog")


def test_a_state_that_cannot_be_read_is_not_met_again() -> None:
    """Torn where it was not looked at before."""
    driver = DiskDriver(RUNNER)
    send(driver, 1)
    driver.kill()
    task = driver.task()
    driver.send("runner.updates", update(1, 2, 10, 2000))

    def torn(key: bytes) -> bytes:
        raise Damaged(Code.STATES_DAMAGED, "a block is torn")

    assert isinstance(task.store, DiskStateStore)
    task.store._read = torn
    with pytest.raises(Damaged):
        task.turn()
    task.close()
    driver._tasks.clear()
    driver.run()

    assert why(driver).endswith("restored from the changelog")
    assert driver.states()["1"].runs[0].total_meters == 20


def test_files_that_turn_out_to_be_torn_while_all_states_are_looked_at_go_too() -> None:
    """As at each tick."""
    driver = DiskDriver(RUNNER)
    send(driver, 1)
    store = driver.task().store
    assert isinstance(store, DiskStateStore)

    def torn(prefix: bytes) -> Any:
        raise Damaged(Code.STATES_DAMAGED, "a block is torn")
        yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store._engine, "items", torn)
        with pytest.raises(Damaged):
            list(store.items())
    driver.kill()
    assert set(driver.states()) == {"1"}
    assert why(driver).endswith("restored from the changelog")


class NoDisk(SimulatedDisk):
    def exists(self) -> bool:
        raise Refused(Code.STATES_FOLDER, "states cannot be kept on disk in /: Read-only file system")


@pytest.mark.parametrize("kind", ["auto", "disk"])
def test_who_has_no_disk_and_asks_for_none_keeps_all_in_memory(kind: str) -> None:
    """As in a container that must not write. Who asks for one is told."""
    driver = DiskDriver(RUNNER)
    send(driver, 1, 2)
    driver.kill()
    session = SimulatedSession(driver.log, RUNNER, 0)
    keeping = StateManager(RUNNER, driver.codec, 0, kind=kind, disk=NoDisk(driver.files, "x"))
    if kind == "disk":
        with raises(Refused, Code.STATES_FOLDER):
            keeping.restore(session)
        return
    assert isinstance(keeping.restore(session).store, MemoryStateStore)
    assert keeping.standing == ("memory", "there is no folder for them on disk")


class Counting:
    """An engine's reads, counted."""

    def __init__(self) -> None:
        self.inner = SimulatedDisk(SimulatedFiles(), "x").open()
        self.reads = 0
        self.write, self.items, self.about, self.close = (
            self.inner.write,
            self.inner.items,
            self.inner.about,
            self.inner.close,
        )

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return self.inner.get(key)


def test_what_was_used_lately_is_not_read_again_and_the_rest_is_let_go() -> None:
    """A cache that is bounded: of a thousand keys a few are in memory, and whoever is asked for again and again."""
    engine = Counting()
    store = DiskStateStore(engine, bytes.decode, cache_bytes=10_000)
    nobody = Record("", 0, 0, None, None)
    for at in range(1000):
        key = f"{at:04}"
        store.apply({key: (key, nobody)}, [("", 0, STATE + key.encode(), key.encode(), None)], None)
        assert store.get("0000") == "0000"
    assert engine.reads == 0
    assert len(store._young) + len(store._old) < 100
    assert [store.get("0500") for _ in range(2)] == ["0500", "0500"]
    assert engine.reads == 1
    store.apply({"0500": (None, nobody)}, [("", 0, STATE + b"0500", None, None)], None)
    assert store.get("0500") is None
    assert len(list(store.items())) == 999
