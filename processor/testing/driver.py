"""`TopologyDriver`: send, run, read, and crash wherever you like.

driver = TopologyDriver(TOPOLOGY, contracts="avro")
driver.send("runner.updates", {"user_id": 1, ...})
driver.crash_at("before_commit")
driver.run()
assert driver.read("runner.stats") == [...]
"""

import functools
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import fastavro

from onefold import pipelines
from onefold.error_codes import Code
from onefold.processor.core.errors import Refused
from onefold.processor.core.steps import STEPS
from onefold.processor.core.ticks import tick_record
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Headers, Record
from onefold.processor.io.contracts import RecordSchema, load
from onefold.processor.io.logical_types import spelled
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.io.serde import AvroCodec, decode_fields
from onefold.processor.runtime.publisher import Publisher
from onefold.processor.runtime.state_manager import StateManager
from onefold.processor.runtime.task import Task
from onefold.processor.runtime.transaction_decider import TransactionDecider
from onefold.processor.testing.decision_log import SimulatedDecisionLog
from onefold.processor.testing.log import SimulatedLog
from onefold.processor.testing.mutation_guard import Watched
from onefold.processor.testing.session import SimulatedSession


class Crash(BaseException):
    """The process ends here: nothing it would have done next happens. No handler's `except Exception` can stop it."""


class TopologyDriver:
    """A topology with everything it needs, in memory.

    Args:
        topology: the pipeline.
        contracts: the folder of its `.avsc` files, or the schemas by topic; None for the folder that the pipeline of the
            topology's name declares, in the project around the working folder or in an installed package.
        partitions: of the inputs; each is a task.
        log: shared with another driver when several instances are to share it.

    Raises:
        Refused: a file is no usable schema, or a topic of the pipeline has none.
    """

    _steps: tuple[str, ...] = STEPS

    def __init__(
        self,
        topology: Topology,
        *,
        contracts: Path | str | Mapping[str, RecordSchema] | None = None,
        partitions: int = 1,
        log: SimulatedLog | None = None,
    ) -> None:
        if contracts is None:
            contracts = _declared(topology.name, Path.cwd())
        wanted = (*topology.inputs, *topology.outputs)
        found = contracts if isinstance(contracts, Mapping) else load(Path(contracts), wanted)
        for topic in wanted:
            if topic not in found:
                raise Refused(Code.SCHEMA_MISSING, f"no schema names the topic {topic} in its topics")
        self.topology = topology
        self.codec = AvroCodec(topology, found)
        self.log = log or SimulatedLog()
        if log is None:
            order = (topology.order,) if topology.order else ()
            outputs = (topic for topic in topology.outputs if topic not in topology.fed)
            for topic in (*topology.reads, *outputs, *topology.dead.values(), *order, topology.changelog):
                self.log.create(topic, partitions)
        self.partitions = partitions
        self.restarts = 0
        self._contracts = found
        self._crash: tuple[str, int] | None = None
        self._tasks: dict[int, Task] = {}
        self._watched: dict[int, Watched] = {}

    def send(
        self,
        topic: str,
        value: Mapping[str, Any] | bytes | None,
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int = 0,
        headers: Headers = (),
    ) -> None:
        """One input record. A mapping goes as JSON, into the partition of its key; bytes go as they are. None is a tombstone.

        Args:
            topic: one of the inputs.
            value: the fields of its schema, any bytes, or None.
            key: the Kafka key of bytes and tombstones. A mapping has that of its state.
            partition: where it is to lie. Without it a record lies in the partition of its key, or in 0 when it has none.
            timestamp_ms: the record's timestamp, in milliseconds since 1970.
            headers: (name, bytes or None) each.

        Raises:
            Rejected: the fields break the schema; send them as bytes to see what becomes of them.
        """
        if isinstance(value, Mapping):
            value = json.dumps(value, default=spelled).encode()
            key = self._key(topic, value)
        if key is None:
            partition = partition or 0
        data = key.encode() if isinstance(key, str) else key
        self.log.append(topic, data, value, partition=partition, timestamp_ms=timestamp_ms, headers=headers)

    def tick(self, at_ms: int) -> None:
        """A tick in each partition, of this time in milliseconds since 1970; one that is not later than the last processed one
        is ignored. `run` processes the tick, after the records that were sent and not run before.
        """
        assert self.topology.ticks is not None, f"{self.topology.name} declares no tick"
        for partition in range(self.partitions):
            self.log.append(self.topology.ticks, *tick_record(at_ms), partition=partition, timestamp_ms=at_ms)

    def crash_at(self, step: str, hit: int = 1) -> None:
        """Crash at the n-th time that the step (one of `core.steps.STEPS`) is reached from now on, once."""
        assert step in self._steps, f"there is no step {step}; there are {', '.join(self._steps)}"
        self._crash = (step, hit)

    def run(self) -> None:
        """Until nothing is left to read; a crashed task is started again, as a supervisor would.

        Raises:
            AssertionError: the handler has changed a state that it was given, instead of returning a new one.
        """
        while True:
            try:
                # Tasks repartition records to one another, so all of them have to come to rest in one round.
                if not sum(self._drain(partition) for partition in range(self.partitions)):
                    return
            except Crash:
                self.restarts += 1
                self.kill()

    def kill(self) -> None:
        """End the tasks as kill -9 does: between two turns, and without a word."""
        self._tasks.clear()

    def stop(self) -> None:
        """Close the tasks in good order."""
        for task in self._tasks.values():
            task.close()
        self._tasks.clear()

    def read(self, topic: str) -> list[dict[str, Any]]:
        """The committed values of an output topic, partition by partition, in order."""
        return [self._value(self._contracts[topic], value or b"") for _, value, _ in self.records(topic)]

    def table(self, topic: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        """An output topic as a table: the latest value of each row."""
        fields = self.topology.outputs[topic] or ()
        return {tuple(value[field] for field in fields): value for value in self.read(topic)}

    def records(self, topic: str) -> list[tuple[bytes | None, bytes | None, dict[str, bytes | None]]]:
        """Key, value and headers of the committed records of any topic."""
        return [
            (entry.key, entry.value, dict(entry.headers))
            for partition in range(self.log.partitions(topic))
            for _, entry in self.log.read(topic, partition, 0)[0]
        ]

    def states(self) -> dict[str, Any]:
        """All states by key, as a new owner would restore them."""
        self.kill()
        self._crash = None
        return {key: state for p in range(self.partitions) for key, state in self.task(p).store.snapshot().items()}

    def task(self, partition: int = 0) -> Task:
        """The running task of a partition; opened when it is not."""
        if partition not in self._tasks:
            session = SimulatedSession(self.log, self.topology, partition)
            log = SimulatedDecisionLog(self.log, self.topology.decisions, partition)
            publisher = Publisher(self.topology, partition, "driver", session, log, MsgpackProposals(), self._step)
            watched = self._watched[partition] = Watched(self.topology, self.codec)
            task = Task(
                watched.topology,
                session,
                self.codec,
                TransactionDecider(watched.topology, session, self._step, publisher.take_back),
                self._step,
                check_every_s=0,
                keeping=self._keeping(partition),
                clock=_standing_still,
            )
            task.open()
            self._tasks[partition] = task
        return self._tasks[partition]

    def _keeping(self, partition: int) -> StateManager | None:
        """Where a task's states are; None: in memory."""
        return None

    def _drain(self, partition: int) -> int:
        folded = 0
        while count := self.task(partition).turn():
            folded += count
        self._watched[partition].check()
        return folded

    def _step(self, name: str) -> None:
        if self._crash is None or self._crash[0] != name:
            return
        step, hits = self._crash
        self._crash = (step, hits - 1) if hits > 1 else None
        if hits == 1:
            raise Crash(step)

    def _value(self, contract: RecordSchema, data: bytes) -> dict[str, Any]:
        if not data.startswith(contract.prefix):
            return decode_fields(contract, data)
        body = io.BytesIO(data[len(contract.prefix) :])
        return cast("dict[str, Any]", fastavro.schemaless_reader(body, contract.schema, None))

    def _key(self, topic: str, data: bytes) -> str:
        return str(self.topology.keys[topic](self.codec.decode(Record(topic, 0, 0, None, data))))


def _standing_still() -> float:
    """The clock of all tasks: how large a transaction is would otherwise depend on how fast the machine is."""
    return 0.0


@functools.cache
def _declared(name: str, folder: Path) -> Path:
    """The folder of a pipeline's contracts. Looked up once: a property-based test makes thousands of drivers."""
    try:
        return pipelines.find(folder)[name].contracts
    except pipelines.InvalidDeclaration as fault:
        raise Refused(Code.SCHEMA_MISSING, f"{fault}; or say contracts=") from fault
