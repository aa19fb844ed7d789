"""What the broker and the database are told, where they may live, and which ports they get."""

import sys
from pathlib import Path

import pytest

from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.pipelines import PROJECT_VARIABLE
from onefold.stack import cores, plan, postgres
from onefold.stack.broker import Broker
from tests.support.coded import raises
from tests.support.examples import EXAMPLES


def broker(home: Path) -> Broker:
    """A broker that is never started."""
    return Broker(home, 1234, 1235, Path("/java"), [Path("/a.jar"), Path("/b.jar")])


def test_the_broker_listens_on_loopback_only_and_forgets_nothing(tmp_path: Path) -> None:
    lines = dict(line.split("=", 1) for line in broker(tmp_path).configuration(tmp_path / "data").splitlines())
    listening = lines["listeners"] + lines["advertised.listeners"] + lines["controller.quorum.voters"]
    assert listening.count("127.0.0.1") == 4
    assert lines["log.retention.ms"] == "-1"
    assert lines["auto.create.topics.enable"] == "false"
    assert lines["unclean.leader.election.enable"] == "false"


def test_kafkas_own_tools_run_on_the_same_jars(tmp_path: Path) -> None:
    command = broker(tmp_path).tool("org.apache.kafka.tools.ConsoleProducer", "--topic", "t")
    assert command[0] == "/java"
    assert "/a.jar:/b.jar" in command
    assert command[-3:] == ["org.apache.kafka.tools.ConsoleProducer", "--topic", "t"]


@pytest.mark.parametrize(("made", "refused"), [("", True), ("4.3.0", True), ("4.2.9", False), ("3.9.1", False)])
def test_topics_that_a_newer_kafka_has_written_are_refused_with_a_sentence(
    tmp_path: Path, made: str, refused: bool
) -> None:
    """Kafka itself says that it cannot deserialize a record. Data without a version are of the one that there was before."""
    ours = Broker(
        tmp_path, 1234, 1235, Path("/java"), [Path("/kafka-clients-4.2.2.jar"), Path("/kafka_2.13-4.2.2.jar")]
    )
    assert ours.version == "4.2.2"
    data = tmp_path / "data"
    data.mkdir()
    (data / "meta.properties").touch()
    if made:
        (data / "kafka.version").write_text(f"{made}\n", encoding="utf-8")
    if not refused:
        ours.prepare()
        return
    with raises(UserError, Code.NEWER_VERSION, f"{made or '4.3.1'}") as told:
        ours.prepare()
    assert told.value.exit_code == 3
    assert "onefold down --wipe" in told.value.hint


def test_the_database_listens_on_loopback_only_and_waits_for_the_disk(tmp_path: Path) -> None:
    command = postgres.PostgresServer(tmp_path, 4321).command()
    assert "listen_addresses=127.0.0.1" in command
    assert "unix_socket_directories=" in command
    assert "fsync=on" in command
    assert "synchronous_commit=on" in command


def test_a_folder_counts_as_open_only_if_every_folder_above_it_is(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert not postgres._open_to_all(closed / "home")


def test_a_pid_file_that_names_another_program_is_removed(tmp_path: Path) -> None:
    server = postgres.PostgresServer(tmp_path, 1)
    server.data.mkdir(parents=True)
    pid_file = server.data / "postmaster.pid"
    pid_file.write_text("1\n", encoding="utf-8")
    server._remove_stale_pid_file()
    assert not pid_file.exists()


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:8123"])
def test_the_dashboard_is_part_of_the_plan_unless_it_is_off(tmp_path: Path, url: str | None) -> None:
    public = {"bootstrap_servers": "b:1", "postgres_dsn": "postgresql://p", "dashboard": url}
    last = plan.pipeline(Settings(home=tmp_path), ["shop"], public)[-1]
    found = [service.argv[-3:] for service in last if service.name == "dashboard"]
    assert found == ([("dashboard", "--port", "8123")] if url else [])


def test_the_programs_of_a_linked_package_are_found_by_their_own_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an installer made it a link in a folder of its user's own, PostgreSQL's account may not walk there by the link's."""
    real = postgres.binaries()
    (tmp_path / real.parents[1].name).symlink_to(real.parents[1])
    monkeypatch.delitem(sys.modules, real.parents[1].name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)

    assert real == postgres.binaries()


def test_a_pipeline_with_replicas_has_so_many_processors(tmp_path: Path) -> None:
    """Whatever the number of those that share tasks; the others have that number."""
    public = {"bootstrap_servers": "here", "postgres_dsn": "postgresql://", "dashboard": None}
    names = [
        service.name
        for service in plan.pipeline(Settings(home=tmp_path, replicas=3), ["runner"], public)[-1]
        if service.name.startswith("processor")
    ]
    assert names == ["processor-runner-1", "processor-runner-2", "processor-runner-3"]
    one = plan.pipeline(Settings(home=tmp_path, replicas=1, processor_instances=2), ["runner"], public)[-1]
    assert sum(service.name.startswith("processor") for service in one) == 2


@pytest.mark.promise("a-process-for-each-core")
@pytest.mark.parametrize(("here", "partitions", "expected"), [(3, 4, 3), (3, 2, 2), (1, 4, 1)])
def test_a_pipeline_has_a_processor_for_each_core(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, here: int, partitions: int, expected: int
) -> None:
    """Each a service, started again alone, and none without a task; of several pipelines each has its share of the cores."""
    monkeypatch.setattr(cores, "available", lambda: here)
    public = {"bootstrap_servers": "here", "postgres_dsn": "postgresql://", "dashboard": None}
    settings = Settings(home=tmp_path, partitions=partitions)
    made = [one for one in plan.pipeline(settings, ["runner"], public)[-1] if one.name.startswith("processor")]
    assert [one.name for one in made] == [f"processor-runner-{number}" for number in range(1, expected + 1)]
    assert {one.argv[-5:-2] for one in made} == {("runner", "--processes", "1")}, "and not more of them below each"
    three = plan.pipeline(settings, ["runner", "trades", "bank"], public)[-1]
    assert sum(one.name.startswith("processor") for one in three) == 3


def test_a_pipeline_with_jobs_has_a_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And the stack is of use without it, as without a processor."""
    monkeypatch.setenv(PROJECT_VARIABLE, str(EXAMPLES / "mails"))
    public = {"bootstrap_servers": "here", "postgres_dsn": "postgresql://", "dashboard": None}
    services = plan.pipeline(Settings(home=tmp_path), ["mails"], public)[-1]
    (worker,) = (service for service in services if service.name.startswith("worker"))

    assert (worker.name, worker.argv[-2:], worker.needed) == ("worker-mails-1", ("work", "mails"), False)


def test_two_sinks_start_with_the_processors(tmp_path: Path) -> None:
    """Each with a name of its own, by which the ledger tells them apart."""
    public = {"bootstrap_servers": "here", "postgres_dsn": "postgresql://", "dashboard": None}
    _, served = plan.pipeline(Settings(home=tmp_path, sinks=2), ["runner"], public)
    sinks = [service for service in served if service.name.startswith("sink")]

    assert [(one.name, one.needed) for one in sinks] == [("sink-1", True), ("sink-2", True)]
    assert [one.argv[-4:] for one in sinks] == [("sink", "runner", "--instance", number) for number in ("1", "2")]
