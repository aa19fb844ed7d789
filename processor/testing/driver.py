"""`TopologyDriver`: send records, run the tasks, crash at any step, and read the outputs.

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
    """Ends the process at a step, without any further action. A handler's `except Exception` does not catch it."""


class TopologyDriver:
    """Runs a topology in memory, on a simulated log.

    Args:
        topology: the topology of the pipeline.
        contracts: the folder of the `.avsc` files, or the schemas by topic. None: the folder in the declaration of the pipeline
            with the topology's name. The pipeline is in the project around the working folder, or in an installed package.
        partitions: the number of input partitions, each with a task.
        log: the log of another driver, for several instances on one log. None: a new log with the topics of the pipeline.

    Raises:
        Refused: a file is no usable schema, or a topic of the pipeline has no schema.
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
        """Send one input record. A mapping is encoded as JSON, bytes are sent unchanged, and None is a tombstone.

        Args:
            topic: an input topic.
            value: the fields of the topic's schema, any bytes, or None.
            key: the Kafka key of bytes and tombstones. The key of a mapping is the key of its state.
            partition: the partition of the record. None: the partition of the key, or 0 without a key.
            timestamp_ms: the record's timestamp, in milliseconds since 1970.
            headers: pairs of a name, and bytes or None.

        Raises:
            Rejected: the fields break the schema. Send the record as bytes to test the dead letter.
        """
        if isinstance(value, Mapping):
            value = json.dumps(value, default=spelled).encode()
            key = self._key(topic, value)
        if key is None:
            partition = partition or 0
        data = key.encode() if isinstance(key, str) else key
        self.log.append(topic, data, value, partition=partition, timestamp_ms=timestamp_ms, headers=headers)

    def tick(self, at_ms: int) -> None:
        """Send a tick of the time `at_ms`, in milliseconds since 1970, to each partition.

        The next `run` processes the tick, after the records that were sent before. A tick that is not later than the last
        processed tick is ignored.
        """
        assert self.topology.ticks is not None, f"{self.topology.name} declares no tick"
        for partition in range(self.partitions):
            self.log.append(self.topology.ticks, *tick_record(at_ms), partition=partition, timestamp_ms=at_ms)

    def crash_at(self, step: str, hit: int = 1) -> None:
        """Crash once, when the tasks reach `step` (one of `core.steps.STEPS`) for the `hit`-th time from now on."""
        assert step in self._steps, f"there is no step {step}; there are {', '.join(self._steps)}"
        self._crash = (step, hit)

    def run(self) -> None:
        """Run the tasks until all records are processed. After a crash, all tasks restart, as under a supervisor.

        Raises:
            AssertionError: the handler has changed a given state, instead of returning a new state.
        """
        while True:
            try:
                # Tasks send repartitioned records to each other, so the run ends after a round in which no task had a record.
                if not sum(self._drain(partition) for partition in range(self.partitions)):
                    return
            except Crash:
                self.restarts += 1
                self.kill()

    def kill(self) -> None:
        """Drop the tasks without closing them, as kill -9 between two cycles does."""
        self._tasks.clear()

    def stop(self) -> None:
        """Close the tasks cleanly."""
        for task in self._tasks.values():
            task.close()
        self._tasks.clear()

    def read(self, topic: str) -> list[dict[str, Any]]:
        """The committed values of an output topic, partition by partition, in order."""
        return [self._value(self._contracts[topic], value or b"") for _, value, _ in self.records(topic)]

    def table(self, topic: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        """An output topic as a table: the latest value of each row, by the row's key fields."""
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
        """All states by key, restored by new tasks. The running tasks are killed, and a planned crash is cancelled."""
        self.kill()
        self._crash = None
        return {key: state for p in range(self.partitions) for key, state in self.task(p).store.snapshot().items()}

    def task(self, partition: int = 0) -> Task:
        """The task of a partition, opened if necessary."""
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
        """The state manager of a task. None: states are in memory."""
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
    """The clock of all tasks. With a real clock, the size of a transaction would depend on the speed of the machine."""
    return 0.0


@functools.cache
def _declared(name: str, folder: Path) -> Path:
    """The folder of a pipeline's schemas. Cached, because a property-based test makes thousands of drivers."""
    try:
        return pipelines.find(folder)[name].contracts
    except pipelines.InvalidDeclaration as fault:
        raise Refused(Code.SCHEMA_MISSING, f"{fault}; or say contracts=") from fault
