"""Check that the topics of a pipeline have the same partitions as at the start of the processor.

Kafka can add partitions to a topic in use. Producers then send keys to other partitions, to tasks without the keys'
states. In this case the processor refuses to start. A running processor continues with its partitions, whose tasks
keep their states, and reports the unread partitions. The progress records of a pipeline contain the number of partitions, which
reveals partitions added to inputs and changelog alike while no processor ran.
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

# The request is small, and an operator who adds partitions should see the effect within a minute.
LOOK_EVERY_S = 10.0


def check_states(admin: AdminClient, topology: Topology, partitions: int, client: Mapping[str, str]) -> None:
    """Compare the number of partitions in each task's progress record with the topics. A partition without a leader is skipped,
    since the progress records of the other tasks have the same number.

    Args:
        partitions: the present number of partitions of the inputs and the changelog.

    Raises:
        Refused: the states have another number of partitions.
        Retriable: the cluster does not respond.
    """
    tasks = [task for task in led(admin, topology.changelog) if task < partitions]
    for value in last_progresses(admin, topology, tasks, client).values() if tasks else ():
        with suppress(ValueError, AttributeError):  # the task itself reports an unreadable record
            if moved := other_partitions(json.loads(value).get("partitions"), topology.name, partitions):
                raise Refused(
                    Code.PARTITIONS_CHANGED,
                    f"{moved}. Start over with `onefold reset {topology.name}`, or make new topics and replay into them",
                )


def check_decision_log(admin: AdminClient, topology: Topology, tasks: int) -> None:
    """Check that each task has a partition of the decision log. In an earlier version, several tasks could share a partition.

    Raises:
        Refused: there are fewer partitions than tasks.
        Retriable: there is no decision log, or the cluster does not respond.
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
    """A periodic check of the topics' partitions.

    Args:
        tasks: the number of partitions of the inputs and the changelog.
        telemetry: gets the difference, and the number of unread partitions.

    Attributes:
        trouble: the present difference, in one sentence, or "".
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
        """Stop the check and clear the reported difference."""
        self._closed.set()
        self._telemetry.faulty(self._topology.name, "")

    def watch(self) -> None:
        """Check periodically until `close`, in a separate thread, since a silent broker may block the request."""

        def look() -> None:
            while not self._closed.wait(LOOK_EVERY_S):
                try:
                    self.look()
                except ProcessorError as error:  # the tasks report a silent broker
                    log.debug("the topics cannot be described", reason=str(error))

        threading.Thread(target=look, name="partitions", daemon=True).start()

    def look(self) -> None:
        """Check once. Raises `Retriable` if the cluster does not respond, and `Refused` if a right is missing."""
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
