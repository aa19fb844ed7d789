"""`TopologyDriver`: send, run, read, and crash wherever you like.

driver = TopologyDriver(TOPOLOGY)
driver.send("runner.updates", {"user_id": 1, ...})
driver.crash_at("before_commit")
driver.run()
assert driver.read("runner.stats") == [...]
"""

import io
import json
from collections.abc import Mapping
from typing import Any, cast

import fastavro

from onefold.processor.core.steps import STEPS
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Record
from onefold.processor.io import contracts
from onefold.processor.io.serde import AvroCodec
from onefold.processor.runtime.task import Task
from onefold.processor.testing.log import SimulatedLog
from onefold.processor.testing.session import SimulatedSession


class Crash(BaseException):
    """The process ends here: nothing it would have done next happens. No handler's `except Exception` can stop it."""


class TopologyDriver:
    """A topology with everything it needs, in memory.

    Args:
        partitions: of the inputs; each is a task.
        log: shared with another driver when several instances are to share it.
    """

    def __init__(self, topology: Topology, *, partitions: int = 1, log: SimulatedLog | None = None) -> None:
        self.topology = topology
        self.codec = AvroCodec(topology, contracts.load())
        self.log = log or SimulatedLog()
        if log is None:
            order = (topology.order,) if topology.order else ()
            for topic in (*topology.inputs, *topology.outputs, *topology.dead.values(), *order, topology.changelog):
                self.log.create(topic, partitions)
        self.partitions = partitions
        self.restarts = 0
        self._contracts = contracts.load()
        self._crash: tuple[str, int] | None = None
        self._tasks: dict[int, Task] = {}

    def send(self, topic: str, value: Mapping[str, Any] | bytes, *, partition: int | None = None) -> None:
        """One input record. A mapping goes as JSON, into the partition of its key; bytes go as they are.

        Args:
            partition: where it is to lie; bytes without it go to partition 0.
        """
        if isinstance(value, bytes):
            self.log.append(topic, None, value, partition=partition or 0)
            return
        data = json.dumps(value).encode()
        key = self._key(topic, data)
        self.log.append(topic, key.encode(), data, partition=partition)

    def crash_at(self, step: str, hit: int = 1) -> None:
        """Crash at the n-th time that the step (one of `core.steps.STEPS`) is reached from now on, once."""
        assert step in STEPS, f"there is no step {step}; there are {', '.join(STEPS)}"
        self._crash = (step, hit)

    def run(self) -> None:
        """Until nothing is left to read; a crashed task is started again, as a supervisor would."""
        while True:
            try:
                # Tasks forward records to one another, so all of them have to come to rest in one round.
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
        contract = self._contracts[topic]
        bodies = [(value or b"")[len(contract.prefix) :] for _, value, _ in self.records(topic)]
        values: Any = [fastavro.schemaless_reader(io.BytesIO(body), contract.schema, None) for body in bodies]
        return cast("list[dict[str, Any]]", values)

    def table(self, topic: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        """An output topic as a table: the latest value of each row."""
        fields = self.topology.outputs[topic] or ()
        return {tuple(value[field] for field in fields): value for value in self.read(topic)}

    def records(self, topic: str) -> list[tuple[bytes | None, bytes | None, dict[str, bytes]]]:
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
            task = Task(self.topology, session, self.codec, self._step, check_every_s=0)
            task.open()
            self._tasks[partition] = task
        return self._tasks[partition]

    def _drain(self, partition: int) -> int:
        folded = 0
        while count := self.task(partition).turn():
            folded += count
        return folded

    def _step(self, name: str) -> None:
        if self._crash is None or self._crash[0] != name:
            return
        step, hits = self._crash
        self._crash = (step, hits - 1) if hits > 1 else None
        if hits == 1:
            raise Crash(step)

    def _key(self, topic: str, data: bytes) -> str:
        return str(self.topology.key(self.codec.decode(Record(topic, 0, 0, None, data))))
