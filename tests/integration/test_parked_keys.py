"""Parked keys on a real broker: released by the commands, in order and once, whatever is killed."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.cli.main import run
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import FAILED
from onefold.operate.dead_letters import parked, replay
from onefold.operate.dead_letters.letters import DeadLetters, Wanted
from onefold.operate.reset.reset import Reset
from onefold.processor.core.topology import Topology
from onefold.processor.io.replays import Dropped
from onefold.verify.contracts import contracts, load
from onefold.verify.decode import decode_output
from tests.support.desk import DEAD, EVENTS, PROGRAM, TAKEN, write_schemas
from tests.support.dying import dies
from tests.support.processes import drained, instance, judge, produce, records

pytestmark = [pytest.mark.promise("parked-keys")]

DROPPED = Dropped("ada@laptop", "a test event")
PROJECT = """
[tool.onefold]
packages = []

[tool.onefold.pipelines.desk]
topology = "tests.support.desk:TOPOLOGY"
workload = "tests.support.desk"
"""


class Site:
    """The pipeline with parked keys, and the commands for it."""

    def __init__(self, topology: Topology, client: dict[str, str], home: Path) -> None:
        self.topology, self.client, self.home = topology, client, home
        self.options: dict[str, Any] = {"bootstrap_servers": client["bootstrap.servers"], "home": str(home)}
        self.sent = defaultdict[str, list[int]](list)

    @property
    def letters(self) -> DeadLetters:
        return DeadLetters("desk", Settings(**self.options))

    def send(self, *events: tuple[str, int, int]) -> None:
        for desk, number, wants in events:
            self.sent[desk].append(number)
            value = json.dumps({"desk": desk, "number": number, "wants": wants}).encode()
            produce(self.client, EVENTS, [(desk.encode(), value)])

    def taken(self) -> dict[str, str]:
        rows = [decode_output(contracts("desk")[TAKEN], one.value) for one in records(self.client, TAKEN)]
        return {row["desk"]: row["numbers"] for row in rows}


@pytest.fixture
def site(
    fresh_domain: Callable[..., Topology], client: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    write_schemas(tmp_path / "avro")
    (tmp_path / "sql" / "merge").mkdir(parents=True)
    (tmp_path / "sql" / "schema").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, value in {"BOOTSTRAP_SERVERS": client["bootstrap.servers"], "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(f"ONEFOLD_{name}", value)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(parked, "STALLED_S", 5.0)
    for kept in (contracts, load):  # of the pipelines of another project
        kept.cache_clear()
    yield Site(fresh_domain("desk"), client, tmp_path)
    for kept in (contracts, load):
        kept.cache_clear()


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """What a command prints as JSON."""
    assert run([*words, "--json"]) == code, capsys.readouterr()
    return json.loads(capsys.readouterr().out)


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2], ids=["elastic", "hot-hot"])
def test_keys_are_released_in_order_whatever_is_killed(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    """The command dies at each of its steps and a processor in between, while further events of the key come."""
    with instance(site.topology, site.client, site.home / "first", replicas=replicas):
        site.send(("a", 1, 0), ("a", 2, 1), ("a", 4, 0), ("a", 6, 0), ("b", 8, 9), ("b", 10, 0), ("c", 12, 0))
        drained(site.topology, site.client)
    assert site.taken() == {"a": "1", "c": "12"}
    they_are_listed(site, capsys)
    one_that_waits_is_not_replayed(site, capsys)
    assert parked.half_released(site.letters) is None

    monkeypatch.setenv("DESK_VERSION", "1")
    monkeypatch.setattr(PROGRAM, "version", 1)
    with instance(site.topology, site.client, site.home / "log", name="x", replicas=replicas) as killed:
        for number, step in enumerate(replay.STEPS):
            dies("replay", "desk", site.options, step)
            site.send(("a", 20 + 2 * number, 0))
        park = parked.half_released(site.letters)
        assert park is not None
        assert park.key == "a"
        a_reset_is_refused(site)
        killed.kill()
    with instance(site.topology, site.client, site.home / "log", name="y", replicas=replicas):
        report = replay.replay(site.letters, Wanted())
        assert not report.stalled
        assert [why.partition(":")[0] for why in report.failed.values()] == ["it was rejected again"]
        (head,) = report.failed
        assert said(capsys, "dead-letters", "replay", "desk", "--key", "a")["replayed"] == []
        for step in replay.STEPS:
            dies("drop", "desk", site.options, step)
        told = replay.drop(site.letters, Wanted(), DROPPED)
        assert (told.done, told.failed, told.stalled) == ([], {}, ""), f"{head} was dropped before"
        drained(site.topology, site.client)

    assert [*site.letters.select(Wanted(open=True))] == []
    assert site.taken() == {
        desk: " ".join(str(one) for one in numbers if one != 8) for desk, numbers in site.sent.items()
    }
    assert parked.half_released(site.letters) is None
    expected = judge(site.topology, site.client)
    assert expected.counts.accepted == sum(map(len, site.sent.values())) - 1


def they_are_listed(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dead-letters", "list", "desk"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 parked keys: 2 rejected events, and 3 that wait behind them." in printed
    listed = said(capsys, "dead-letters", "list", "desk", "--reason", "waits behind")
    assert [one["parked"]["number"] for one in listed if one["key"] == "a"] == [1, 2]
    shown = said(capsys, "state", "get", "desk", "a")
    assert shown["value"] == {"numbers": "1"}
    assert "parked behind desk.events/" in shown["note"]


def one_that_waits_is_not_replayed(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (head, waiting, *_) = [one for one in said(capsys, "dead-letters", "list", "desk") if one["key"] == "a"]
    told = said(capsys, "dead-letters", "replay", "desk", waiting["place"], code=FAILED)
    assert told["failed"] == {waiting["place"]: f"it waits behind {head['place']}: replay or drop that one"}
    told = said(capsys, "dead-letters", "drop", "desk", waiting["place"], "--because", "x", "--dry-run", code=FAILED)
    assert (told["would"], [*told["failed"]]) == ([], [waiting["place"]])
    told = said(capsys, "dead-letters", "replay", "desk", head["place"], "--dry-run", code=FAILED)
    assert len(told["would"]) == 3
    assert len(records(site.client, EVENTS)) == 7


def a_reset_is_refused(site: Site) -> None:
    reset = Reset.__new__(Reset)
    reset.name, reset._topology, reset._client, reset._inputs = "desk", site.topology, site.client, False
    reset._settings = Settings(**site.options)
    from onefold.processor.io.admin import connect

    reset._kafka = connect(site.client)
    with pytest.raises(UserError) as caught:
        reset._refuse_half_released_keys()
    assert caught.value.code is Code.REPLAYED
    assert "after a reset the key would have another order" in str(caught.value)


@pytest.mark.long
def test_without_a_processor_the_command_says_that_events_may_still_wait(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with instance(site.topology, site.client, site.home / "first"):
        site.send(("a", 8, 9), ("a", 10, 0))
        drained(site.topology, site.client)
    (head, _) = site.letters.select(Wanted())
    assert parked.half_released(site.letters) is None
    told = said(capsys, "dead-letters", "drop", "desk", str(head.place), "--because", "x", code=FAILED)
    assert (told["dropped"], len(told["replayed"])) == ([str(head.place)], 1)
    assert told["stalled"].startswith("the processor of desk has not taken them yet")
    assert parked.half_released(site.letters) is not None, "the replays are not taken"
    with instance(site.topology, site.client, site.home / "log"):
        told = said(capsys, "dead-letters", "drop", "desk", "--all", "--because", "x")
        assert (told["dropped"], told["done_before"]) == ([], 2)
        drained(site.topology, site.client)
    assert site.taken() == {"a": "10"}
    assert len(records(site.client, DEAD)) == 2
    judge(site.topology, site.client)
