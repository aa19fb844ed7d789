"""One module makes Kafka clients, so that each service can give the reason when Kafka does not let it in."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.rooms import modules, nodes

MAKER = "onefold.kafka_client"
KINDS = {
    "AdminClient",
    "Consumer",
    "Producer",
    "DeserializingConsumer",
    "SerializingProducer",
    "AIOConsumer",
    "AIOProducer",
}

ASKS = "onefold.processor.io.ask"
# Requests that librdkafka sends to the broker that the metadata name as the controller. The judge shares no code with the
# processor, and `kafka_client` is below it; each has a loop of its own.
TO_THE_CONTROLLER = {"describe_topics", "create_topics", "delete_topics"}
OWN_LOOPS = {MAKER, "onefold.proof.log"}


def makes(path: Path) -> Iterator[int]:
    """The lines of a module that make a client, under whatever name it was imported."""
    names = {
        alias.asname or alias.name
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("confluent_kafka")
        for alias in node.names
        if alias.name in KINDS
    }
    for node in nodes(path):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in names or ("." in called and called.rpartition(".")[2] in KINDS):
                yield node.lineno


def test_one_module_makes_kafka_clients() -> None:
    product = {name: path for name, path in modules().items() if not name.startswith("tests")}
    making = {name: lines for name, path in product.items() if (lines := [*makes(path)])}

    assert making.keys() == {MAKER}


def asks(path: Path) -> Iterator[int]:
    """The lines of a module that ask the controller by a client's own method."""
    ours = {
        alias.asname or alias.name
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onefold.")
        for alias in node.names
    }
    for node in nodes(path):
        called = node.func if isinstance(node, ast.Call) else None
        if (
            isinstance(called, ast.Attribute)
            and called.attr in TO_THE_CONTROLLER
            and ast.unparse(called.value) not in ours
        ):
            yield called.lineno


def test_no_dead_controller_is_waited_for() -> None:
    """One module sends these requests, and passes over a silent broker."""
    product = {name: path for name, path in modules().items() if not name.startswith(("tests", "onefold.bench"))}
    asking = {name: lines for name, path in product.items() if (lines := [*asks(path)])}

    assert asking.keys() == {ASKS, *OWN_LOOPS, "onefold.stack.warm"}, asking  # the last one has a broker of its own
