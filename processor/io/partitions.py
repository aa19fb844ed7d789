"""Whether the topics of a pipeline still have the partitions with which its processor was started.

Kafka adds partitions to a topic while it is used. Producers then send keys to other partitions than before, where no task has
their states. A start is refused then. A processor that runs goes on with the partitions that it has, whose tasks keep their
states, and says that nobody reads the others. The progress records of a pipeline name the number of partitions: partitions
that were added to inputs and changelog alike, while no processor ran, are found by them.
"""

import json
import threading
from collections.abc import Mapping
from contextlib import suppress

import structlog
from confluent_kafka.admin import AdminClient

from onefold.error_codes import Code
from onefold.processor.core.changelog_format import other_partitions
from onefold.processor.core.errors import ProcessorError, Refused, Retriable
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import existing, last_progresses, led, partition_counts
from onefold.processor.io.kafka_errors import check_visible
from onefold.telemetry import SILENT, UNREAD, Telemetry

log = structlog.get_logger()

# One question about a few topics. Somebody who adds partitions looks for what comes of it within a minute.
LOOK_EVERY_S = 10.0


def check_states(admin: AdminClient, topology: Topology, partitions: int, client: Mapping[str, str]) -> None:
    """Compare the number of partitions in each task's progress record with that of the topics. A partition without a leader
    keeps no other task from its start: the progress records of the others name the same number.

    Args:
        partitions: of the inputs and the changelog now.

    Raises:
        Refused: the states are of another number of partitions.
        Retriable: the cluster does not answer.
    """
    tasks = [task for task in led(admin, topology.changelog) if task < partitions]
    for value in last_progresses(admin, topology, tasks, client).values() if tasks else ():
        with suppress(ValueError, AttributeError):  # the task itself reports a record that cannot be read
            if moved := other_partitions(json.loads(value).get("partitions"), topology.name, partitions):
                raise Refused(
                    Code.PARTITIONS_CHANGED,
                    f"{moved}. Start over with `onefold reset {topology.name}`, or make new topics and replay into them",
                )


def check_decision_log(admin: AdminClient, topology: Topology, tasks: int) -> None:
    """Check that each task has a partition of the decision log: an earlier version let several share one.

    Raises:
        Refused: there are fewer partitions than tasks.
        Retriable: there is no decision log, or the cluster does not answer.
    """
    topic, name = topology.decisions, topology.name
    found = existing(admin).get(topic)
    if not found:
        check_visible(admin, [topic])
        raise Retriable(Code.TOPIC_MISSING, f"topic {topic} does not exist")
    if found < tasks:
        raise Refused(
            Code.PARTITIONS_CHANGED,
            f"{topic} has {found} partitions, and each of the {tasks} tasks of {name} needs one of its own. Start over with "
            f"`onefold reset {name}`, or see `onefold docs hot-hot`, a log that tasks shared",
        )


class Partitions:
    """Looks again and again.

    Args:
        tasks: how many partitions the inputs and the changelog have.
        telemetry: told what is different, and how many partitions no task reads.

    Attributes:
        trouble: what is different now, in one sentence, or "".
    """

    def __init__(
        self,
        topology: Topology,
        admin: AdminClient,
        tasks: int,
        telemetry: Telemetry = SILENT,
    ) -> None:
        self._topology, self._admin = topology, admin
        self._tasks = tasks
        self._telemetry = telemetry
        self.trouble = ""
        self._closed = threading.Event()

    def close(self) -> None:
        """Look no more, and say nothing more."""
        self._closed.set()
        self._telemetry.faulty(self._topology.name, "")

    def watch(self) -> None:
        """Look until it is closed, in a thread of its own: a broker that does not answer may keep it waiting."""

        def look() -> None:
            while not self._closed.wait(LOOK_EVERY_S):
                try:
                    self.look()
                except ProcessorError as error:  # the tasks say that Kafka does not answer
                    log.debug("the topics cannot be described", reason=str(error))

        threading.Thread(target=look, name="partitions", daemon=True).start()

    def look(self) -> None:
        """Ask once. Raises `Retriable` when the cluster does not answer, and `Refused` when it does not allow it."""
        topology = self._topology
        counts = partition_counts(self._admin, [*topology.reads, topology.changelog])
        sentences = []
        for topic in topology.reads:
            if (found := counts.get(topic, self._tasks)) > self._tasks:
                lies_in = _numbers(topic, self._tasks, found)
                sentences.append(f"{self._differs(topic, found)}: no task reads what lies in {lies_in}")
        if (found := counts.get(topology.changelog, self._tasks)) > self._tasks:
            sentences.append(self._differs(topology.changelog, found))
        unread = sum(max(0, counts.get(topic, 0) - self._tasks) for topic in topology.reads)
        self._telemetry.put(UNREAD, unread, domain=topology.name)
        self._say("; ".join(sentences))

    def _differs(self, topic: str, found: int) -> str:
        return f"topic {topic} has {found} partitions, and {self._topology.name} was started with {self._tasks}"

    def _say(self, what: str) -> None:
        if self._closed.is_set():
            return
        trouble = (
            what
            and f"{what}. Its tasks go on, and the next start is refused: see `onefold docs operating`, partitions added"
        )
        if trouble and trouble != self.trouble:
            log.error(trouble)
        self.trouble = trouble
        self._telemetry.faulty(self._topology.name, trouble)


def _numbers(topic: str, first: int, end: int) -> str:
    return f"{topic}/{first}" if end == first + 1 else f"{topic}/{first} to {topic}/{end - 1}"
