"""Whether a topic is compacted is asked of Kafka: an answer that is refused is no answer, and proves nothing."""

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from onefold import kafka_ask
from onefold.error_codes import Code
from onefold.operate.acls import CONFIGS, Service, acls_of
from onefold.pipelines import find
from onefold.processor.loading import load_topology
from onefold.verify.audit.auditor import Auditor
from onefold.verify.log import Log
from onefold.verify.state import check_beginnings, topics_of
from onefold.verify.verdict import INVALID, UNKNOWN, CannotTell, Finding
from onefold.workloads import runner
from tests.support.coded import raises
from tests.support.followed import Followed
from tests.support.simulated_stage import JudgesLog
from tests.verify.test_agreement_bounds import APPS

pytestmark = pytest.mark.promise("least-acls")

REFUSED = CannotTell(Code.KAFKA_RIGHT, "no right to read the settings of runner.updates (DescribeConfigs)")


def refuse(self: Any, topics: Iterable[str]) -> list[str]:
    raise REFUSED


@pytest.mark.parametrize("service", [Service.VERIFIER, Service.AUDITOR], ids=str)
def test_a_verifier_may_ask_of_inputs_and_outputs(service: Service) -> None:
    pipeline = find()["sheets"]
    topology = load_topology(pipeline)
    asked = {acl.name for acl in acls_of(service, [pipeline]) if acl.operation == CONFIGS}
    assert asked == {*topology.reads, *topology.outputs}


@pytest.mark.parametrize(
    ("kafka_code", "code", "named"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Code.KAFKA_RIGHT, ["hidden", "DescribeConfigs"]),
        (KafkaError.INVALID_REQUEST, Code.KAFKA_CALL_FAILED, ["hidden"]),
    ],
    ids=["without the right", "an error"],
)
def test_a_refusal_is_no_answer(monkeypatch: pytest.MonkeyPatch, kafka_code: int, code: Code, named: list[str]) -> None:
    def answers(admin: Any, resources: list[Any], timeout_s: float) -> Any:
        said, refused = Future[Any](), Future[Any]()
        said.set_result({"cleanup.policy": SimpleNamespace(value="compact")})
        refused.set_exception(KafkaException(KafkaError(kafka_code)))
        return lambda: {one: refused if one.name == "hidden" else said for one in resources}

    monkeypatch.setattr(kafka_ask, "describe_configs", answers)
    log = object.__new__(Log)
    log.__dict__.update(_admin=SimpleNamespace(settings={}), _answer_s=1.0, _servers="broker:9092")
    assert log.compacted(["one", "other", "one"]) == ["one", "other"]
    with raises(CannotTell, code, *named):
        log.compacted(["one", "hidden"])


def test_verifiers_ask_before_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Followed(APPS[runner].TOPOLOGY, runner.WORKLOAD)
    monkeypatch.setattr(JudgesLog, "compacted", refuse)
    with raises(CannotTell, Code.KAFKA_RIGHT, "DescribeConfigs"):
        followed.begin()
    log = followed.kafka().log({}, topics_of(runner.WORKLOAD).all)
    with raises(CannotTell, Code.KAFKA_RIGHT, "DescribeConfigs"):
        check_beginnings(log, runner.WORKLOAD, log.positions)


def test_what_is_found_while_kafka_refuses_waits_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A right that is taken away while the continuous verifier runs makes its verdict unknown."""
    followed = Followed(APPS[runner].TOPOLOGY, runner.WORKLOAD)
    followed.begin()
    audited = Auditor("runner", client={}, dsn="", kafka=followed.kafka())
    audited._following = followed.following
    with monkeypatch.context() as patched:
        patched.setattr(JudgesLog, "compacted", refuse)
        with raises(CannotTell, Code.KAFKA_RIGHT):
            audited._name([Finding("extra row", "runner.stats")])
        audited._unknown(REFUSED)
        standing = audited.standing
        assert (standing.outcome, standing.reason, standing.findings) == (UNKNOWN, str(REFUSED), [])
    audited._name([])
    audited._say("")
    assert (standing.outcome, [one.kind for one in standing.findings]) == (INVALID, ["extra row"])
