"""Has a broker do once what clients ask of it, so that its JVM writes down which classes that takes."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onefold import class_archive, jvm
from onefold.error_codes import Code
from onefold.operate.errors import UserError
from onefold.stack import inherited
from onefold.stack.broker import JVM_FLAGS, Broker
from onefold.stack.ports import free_ports
from onefold.stack.service import Ready, is_ready

_FOLDER = "classes-kafka"
_READY_S = 180.0  # many times what a start takes, at the lowest priority
_EXIT_S = 180.0  # and the end, with the archive
_CALL_S = 60.0
_LOOK_S = 0.2


def place(cache: Path, jars: Sequence[Path], executable: Path) -> Path | None:
    """Where the archive for a broker of these jars with this Java is, or would be; None for a Java that makes none."""
    return class_archive.place(cache / _FOLDER, jars, executable.resolve().parents[1], JVM_FLAGS)


def make(file: Path, jars: Sequence[Path], executable: Path) -> bool:
    """Makes the archive `file`, see `place`, with a broker of its own. Returns whether the JVM wrote one. Whatever ends it, the
    broker is gone then.

    Raises:
        UserError: the broker does not start, or does not end.
    """
    from confluent_kafka import KafkaException  # as in `service`: most commands need no client

    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=class_archive.DRAFTS, dir=file.parent) as folder:
        draft, port, controller = Path(folder) / file.name, *free_ports(2)
        broker = Broker(Path(folder) / "kafka", port, controller, executable, jars)
        try:
            broker.prepare()
        except subprocess.TimeoutExpired:
            raise UserError(Code.BUSY, "the machine is too busy to note which classes Kafka needs") from None
        with (Path(folder) / "log").open("wb") as out:
            process = subprocess.Popen(
                broker.recording(draft),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=inherited.environment(inherited.KAFKA),
            )
        try:
            _wait_until_it_answers(process, broker.bootstrap_servers, Path(folder) / "log")
            _exercise(broker.bootstrap_servers)
            process.terminate()
            process.wait(_EXIT_S)
        except KafkaException as error:
            raise UserError(
                Code.CLASSES_NOT_ARCHIVED,
                f"the broker whose classes are to be noted does not answer: {error.args[0].str()}",
            ) from None
        except subprocess.TimeoutExpired:
            raise UserError(
                Code.CLASSES_NOT_ARCHIVED, f"the broker did not write its classes down in {_EXIT_S:.0f} s"
            ) from None
        finally:
            process.kill()
            process.wait()
        if not draft.exists():
            return False
        class_archive.keep(draft, file)
    return True


def _wait_until_it_answers(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while not is_ready(Ready("kafka", address))[0]:
        if (code := process.poll()) is not None:
            reason = jvm.last_words(log.read_text(encoding="utf-8", errors="replace"), code)
            raise UserError(
                Code.CLASSES_NOT_ARCHIVED, f"the broker whose classes are to be written down did not start: {reason}"
            )
        if time.monotonic() > deadline:
            raise UserError(
                Code.CLASSES_NOT_ARCHIVED,
                f"the broker whose classes are to be written down did not answer within {_READY_S:.0f} s",
            )
        time.sleep(_LOOK_S)


def _exercise(address: str) -> None:
    """What a pipeline's processes ask for when they start: a topic, transactions, a group's reading, and where a topic ends."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import NewTopic, OffsetSpec  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

    from onefold import kafka_client

    client: dict[str, Any] = {"bootstrap.servers": address}
    admin = kafka_client.admin(client)
    for made in admin.create_topics([NewTopic("warm", 2, config={"cleanup.policy": "compact"})]).values():
        made.result(_CALL_S)
    producer = kafka_client.producer({**client, "transactional.id": "warm", "compression.type": "lz4"})
    producer.init_transactions(_CALL_S)
    reader = kafka_client.member(
        {**client, "group.id": "warm", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    reader.subscribe(["warm"])
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce("warm", b"value", b"key")
        producer.flush(_CALL_S)
        end(_CALL_S)
    if message := reader.poll(_CALL_S):
        reader.commit(message=message, asynchronous=False)
    reader.close()
    asked = {TopicPartition("warm", 0): OffsetSpec.latest()}  # type: ignore[no-untyped-call]  # the library forgot its annotation
    for found in admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED).values():
        found.result(_CALL_S)
