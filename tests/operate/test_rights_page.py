"""docs/rights.md has the rights that the code derives; `python -m tests.support.rights` writes them."""

import re
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from onefold import kafka_ask
from onefold.operate.acls import CONFIGS, Service, acls_of
from onefold.pipelines import find
from onefold.processor.loading import load_topology
from onefold.proof.log import Log
from tests.support import rights


def test_the_page_has_the_rights_of_the_code() -> None:
    text = rights.PAGE.read_text(encoding="utf-8")
    assert text == rights.page(text)


def test_each_threat_names_tests_that_exist() -> None:
    named = re.findall(r"tests/[\w/]+\.py", rights.PAGE.read_text(encoding="utf-8"))
    assert len(named) > 10
    root = Path(rights.__file__).parents[2]
    assert [name for name in named if not (root / name).exists()] == []


def test_a_verifier_may_ask_whether_inputs_and_outputs_are_compacted() -> None:
    pipeline = find()[rights.EXAMPLE]
    topology = load_topology(pipeline)
    for service in (Service.VERIFIER, Service.AUDITOR):
        asked = {acl.name for acl in acls_of(service, [pipeline]) if acl.operation == CONFIGS}
        assert asked == {*topology.reads, *topology.outputs}


def test_a_topic_whose_settings_cannot_be_read_may_be_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(admin: Any, resources: list[Any], timeout_s: float) -> Any:
        said, refused = Future[Any](), Future[Any]()
        said.set_result({"cleanup.policy": SimpleNamespace(value="compact")})
        refused.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
        return lambda: {one: said if one.name == "compacted" else refused for one in resources}

    monkeypatch.setattr(kafka_ask, "describe_configs", answers)
    log = object.__new__(Log)
    log.__dict__.update(_admin=None, _answer_s=1.0)
    assert log.compacted(["compacted", "hidden"]) == ["compacted"]
    assert log.compacted(["compacted", "hidden"], or_unknown=True) == ["compacted", "hidden"]
