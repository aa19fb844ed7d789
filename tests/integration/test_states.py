"""`onefold state` over a real broker: the changelog that a processor wrote, and what others may have put there."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from onefold.cli.main import run
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, OK, UNKNOWN, USAGE
from onefold.operate import states
from onefold.processor.core.topology import Topology
from onefold.processor.io.partitioner import partition_of
from tests.support.coded import code_of, raises
from tests.support.explained import Explained, send
from tests.support.infrastructure import transactional
from tests.support.processes import records

# Of a kilobyte each; more than is read at once.
LARGE = 60_000
MakeDomain = Callable[..., Topology]


@pytest.fixture
def campaigns(fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path) -> Explained:
    """Nothing has been sent yet."""
    return Explained(fresh_domain("campaigns"), client, "", tmp_path)


def written(domain: Explained, key: str) -> list[int]:
    """The offsets of the states of a key."""
    wanted = b"s" + key.encode()
    return [one.offset for one in records(domain.client, domain.topology.changelog) if one.key == wanted]


def put(domain: Explained, key: str, value: bytes | None, commit: bool = True) -> None:
    """A state in the changelog that no processor wrote."""
    producer = transactional(domain.client, "somebody-else")
    producer.begin_transaction()
    producer.produce(domain.topology.changelog, value, b"s" + key.encode(), partition_of(key, 2))
    assert producer.flush(20) == 0, "what is aborted lies in the log too"
    producer.commit_transaction(20) if commit else producer.abort_transaction(20)


def test_now_and_then(campaigns: Explained) -> None:
    """A state is that of the last record up to the offset, itself included."""
    campaigns.fold([send(1, 1, 100)], [send(2, 1, 7)], [send(1, 2, 1000)])
    first, second = written(campaigns, "1")
    home = partition_of("1", 2)
    now = states.get(campaigns.settings, "campaigns", "1")

    assert now.at == f"campaigns.changelog/{home}/{second}"
    assert now.value["changes"] == 2
    for offset, changes in ((first, 1), (second - 1, 1), (second, 2)):
        assert states.get(campaigns.settings, "campaigns", "1", f"{home}:{offset}").value["changes"] == changes


def test_what_is_not_there_any_more(campaigns: Explained) -> None:
    """Before its first record a key had no state, or compaction has removed it: nobody can tell. A key may be forgotten."""
    campaigns.fold([send(1, 1, 100)])
    (first,) = written(campaigns, "1")
    if first:
        before = states.get(campaigns.settings, "campaigns", "1", str(first - 1))
        assert (before.value, "compaction has removed" in before.note) == (None, True)
    assert "holds nothing of this key" in states.get(campaigns.settings, "campaigns", "77").note
    assert "is the state of now" in states.get(campaigns.settings, "campaigns", "1", "100000").note

    put(campaigns, "1", None)
    records(campaigns.client, campaigns.topology.changelog)
    now = states.get(campaigns.settings, "campaigns", "1")
    assert (now.value, now.note) == (None, "the key was forgotten there")


def test_only_what_is_committed_and_a_state(campaigns: Explained) -> None:
    """What was aborted never was. What is no state of the pipeline is shown as the bytes that it is, and why."""
    campaigns.fold([send(1, 1, 100)])
    put(campaigns, "1", b'{"sends": {}, "changes": 99}', commit=False)
    records(campaigns.client, campaigns.topology.changelog)
    assert states.get(campaigns.settings, "campaigns", "1").value["changes"] == 1

    put(campaigns, "1", b'\x1b[31m{"sends": 1}\xff')
    records(campaigns.client, campaigns.topology.changelog)
    now = states.get(campaigns.settings, "campaigns", "1")
    assert now.value is None
    assert now.raw == '\x1b[31m{"sends": 1}\\xff'
    assert "none of Campaign" in now.note


def test_a_large_changelog_is_looked_through_in_little_memory(campaigns: Explained) -> None:
    """Also when the key is the one that was written first: what is held does not grow with what is read."""
    producer = Producer({**campaigns.client, "linger.ms": 5})
    home, changelog = partition_of("1", 2), campaigns.topology.changelog
    for number in range(LARGE):
        # By numbers: a repeated text would be one in memory as well.
        state = {"sends": {}, "changes": number, "more": f"{number:01024}"}
        key = b"1" if number == 0 else b"other%d" % number
        producer.produce(changelog, json.dumps(state).encode(), b"s" + key, home)
        producer.poll(0)
    assert producer.flush(60) == 0

    tracemalloc.start()
    try:
        now = states.get(campaigns.settings, "campaigns", "1")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (now.at, now.records_read) == (f"{changelog}/{home}/0", LARGE)
    assert peak < LARGE * 1024 / 5, f"{peak:,} bytes were held at once"


def test_the_command(campaigns: Explained, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What it prints, and what it ends with."""
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", campaigns.client["bootstrap.servers"])
    campaigns.fold([send(1, 1, 100)], [send(1, 1, 101, version=1)])
    first, _ = written(campaigns, "1")
    home = partition_of("1", 2)

    assert run(["state", "get", "campaigns", "1"]) == OK
    assert '"sent": 101' in capsys.readouterr().out
    assert run(["state", "get", "campaigns", "1", "--at", f"{home}:{first}", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["value"]["changes"] == 1
    assert run(["state", "get", "campaigns", "404"]) == FAILED
    assert run(["state", "get", "nowhere", "1"]) == USAGE
    assert code_of(capsys.readouterr().err, "nowhere") is Code.PIPELINE_UNKNOWN
    assert run(["state", "get", "campaigns", "1", "--at", f"{1 - home}:0"]) == USAGE
    assert code_of(capsys.readouterr().err) is Code.ARGUMENT_WRONG
    put(campaigns, "1", b"\x1b[31m")
    records(campaigns.client, campaigns.topology.changelog)
    assert run(["state", "get", "campaigns", "1"]) == FAILED
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", ":", "1:", ":1", "a", "1:-1", "1:2:3", "²", "9" * 30])
def test_a_place_is_two_numbers(text: str) -> None:
    """Or one: the partition follows from the key."""
    with raises(UserError, Code.ARGUMENT_WRONG):
        states.position(text)
    assert (states.position("3:12"), states.position("12")) == ((3, 12), (None, 12))


@pytest.mark.promise("verify-states")
def test_verify_finds_a_wrong_state_of_a_quiet_key(
    campaigns: Explained, database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The changelog of a processor is right; nothing else shows the state that somebody else has put there."""
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", campaigns.client["bootstrap.servers"])
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", database)
    campaigns.fold([send(1, 1, 100), send(2, 1, 7)], [send(1, 2, 1000)])
    ask = ["verify", "campaigns", "--states", "--timeout", "0", "--json"]

    assert run(ask) == UNKNOWN, "there are no tables"
    right = json.loads(capsys.readouterr().out)
    assert (right["states"], right["findings"]) == (2, [])

    state = states.get(campaigns.settings, "campaigns", "2").value
    put(campaigns, "2", json.dumps(state | {"changes": 5}).encode())
    assert run(ask) == FAILED
    (wrong,) = json.loads(capsys.readouterr().out)["findings"]
    assert (wrong["kind"], wrong["where"]) == ("wrong state", "campaigns.changelog")
    assert wrong["key"] == {"key": "2", "partition": partition_of("2", 2)}
    assert wrong["columns"] == {"changes": [state["changes"], 5]}
    put(campaigns, "2", json.dumps(state | {"changes": 6}).encode(), commit=False)
    put(campaigns, "2", json.dumps(state).encode())
    assert run(ask) == UNKNOWN
    assert json.loads(capsys.readouterr().out)["states"] == 2
