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
