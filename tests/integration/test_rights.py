"""Each right in Kafka that `status`, the page, `verify` and the sink need, denied alone: the sentence names it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.cli import main
from onefold.config.settings import load
from onefold.dashboard.observer import Observer
from onefold.exit_codes import OK, REFUSED
from onefold.processor.core.errors import Refused
from onefold.processor.io import admin
from onefold.processor.loading import topology_of
from onefold.spark_sink.kafka.topics import Topics
from onefold.stack.embedded import Infrastructure
from onefold.verify.log import Log
from onefold.verify.record import Record
from onefold.verify.verdict import CannotTell
from onefold.workloads import runner
from tests.integration.test_kafka_refuses import set_up
from tests.support.guarded import USER, Guarded, guarded
from tests.support.processes import drained, instance, produce
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("missing-rights")

ANSWER_S = 30.0
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, DESCRIBE, ALL = AclOperation.READ, AclOperation.DESCRIBE, AclOperation.ALL
UPDATES, MESSAGES, CHANGELOG = "runner.updates", "runner.messages", "runner.changelog"


class Denied(NamedTuple):
    """A right that the client lacks, and what is said of it."""

    kind: ResourceType
    name: str
    operation: AclOperation
    says: str


DENIED = {
    "the input may not be read": Denied(TOPIC, UPDATES, READ, f"user {USER} has no right to read {UPDATES}"),
    "the input may not be described": Denied(TOPIC, UPDATES, DESCRIBE, f"no right to describe {UPDATES}"),
    "an output may not be read": Denied(TOPIC, MESSAGES, READ, f"user {USER} has no right to read {MESSAGES}"),
    "an output may not be described": Denied(TOPIC, MESSAGES, DESCRIBE, f"no right to describe {MESSAGES}"),
    "the changelog may not be read": Denied(TOPIC, CHANGELOG, READ, f"{CHANGELOG} cannot be read: TOPIC_AUTHORIZATION"),
    "the changelog may not be described": Denied(TOPIC, CHANGELOG, DESCRIBE, f"no right to describe {CHANGELOG}"),
}


@pytest.fixture(scope="module")
def broker(infrastructure: Infrastructure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Has a pipeline that has processed something, and has more to process; the client may do everything."""
    home = tmp_path_factory.mktemp("rights")
    with guarded(infrastructure, home) as running:
        root, topology = {"bootstrap.servers": running.bootstrap_servers}, topology_of("runner")
        admin.create_topics(topology, 1, root)
        with instance(topology, root, home / "log"):
            produce(root, UPDATES, [(made.key, made.value) for made in runner.generate(1, 50)])
            drained(topology, root)
        produce(root, UPDATES, [(made.key, made.value) for made in runner.generate(2, 5)])
        for kind in (TOPIC, GROUP):
            running.allow(kind, "", ALL)
        eventually(lambda: len(admin.existing(admin.connect(running.client("PASSWORD")))) > 1, ANSWER_S, "it may")
        yield running


@pytest.fixture
def _settings(broker: Guarded, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(broker.client("PASSWORD"), tmp_path, monkeypatch, database)


@pytest.mark.long  # 25 s
@pytest.mark.usefixtures("_settings")
@pytest.mark.parametrize("case", DENIED)
def test_status_and_the_page_name_the_right_that_is_missing(
    broker: Guarded, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    denied = DENIED[case]

    def said() -> str:
        code, shown = main.run(["status"]), capsys.readouterr()
        return shown.out + shown.err if code == REFUSED else ""

    with broker.denied(denied.kind, denied.name, denied.operation):
        text = eventually(said, ANSWER_S, "the right is missing")
        assert denied.says in text
        observer = Observer(load(), load().postgres())
        shown = observer._look(observer._ask()).asked.lag
        lags, problem = shown.lag, shown.problem
    assert "does not answer" not in problem
    assert denied.says in (lags["runner"].no_inputs or lags["runner"].no_outputs)
    assert "lag of bank              Kafka shows no topic" in text
    assert "`onefold migrate` makes it" in text, "what another pipeline lacks is another matter"


@pytest.mark.usefixtures("_settings")
def test_no_group_is_needed_by_who_joins_none(broker: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    """Of `status` and the judge: partitions are assigned by hand, and librdkafka asks for a coordinator all the same."""
    client = broker.client("PASSWORD")
    with broker.denied(GROUP, "*", ALL):

        def refused() -> bool:
            asking = admin.connect(client)
            asked = asking.describe_consumer_groups(["onefold-runner"], request_timeout=2.0)["onefold-runner"]
            return asked.exception(ANSWER_S) is not None

        eventually(refused, ANSWER_S, "the right is missing")
        assert main.run(["status"]) == OK, capsys.readouterr().err
        shown = capsys.readouterr().out
        assert "unknown to process" not in shown
        assert "age unknown" not in shown
        read: list[Record] = []
        with closing(Log(client, [UPDATES])) as judge:
            judge.read(judge.stable_ends(), read.append)
        assert len(read) == 55
        assert main.run(["dead-letters", "list", "runner"]) == OK, capsys.readouterr().err


def test_judge_and_sink_name_the_topic_that_may_not_be_read(broker: Guarded) -> None:
    client = broker.client("PASSWORD")
    options = {name: value for name, value in client.items() if name != "bootstrap.servers"}
    with broker.denied(TOPIC, MESSAGES, READ):

        def refused() -> str:
            with closing(Topics(client["bootstrap.servers"], options)) as looked:
                try:
                    looked.record_from(MESSAGES, 0, 0)
                except Refused as error:
                    return str(error)
            return ""

        assert f"{MESSAGES}/0" in eventually(refused, ANSWER_S, "the sink is refused")
        with closing(Log(client, [MESSAGES])) as judge, pytest.raises(CannotTell, match=f"{MESSAGES} cannot be read"):
            judge.read(judge.stable_ends(), lambda record: None)
