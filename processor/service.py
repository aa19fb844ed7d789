"""One processor instance: the only module that combines topologies, the runtime and Kafka."""

import faulthandler
import gc
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import structlog

from onefold.kafka_client import Admin
from onefold.pauses import Pausable
from onefold.process import ServiceProcess
from onefold.processor.core.abc import Assignment, Codec
from onefold.processor.core.errors import Retriable, Unauthenticated
from onefold.processor.core.topology import Topology
from onefold.processor.io import open_files
from onefold.processor.io.admin import connect, create_topics, partitions_of
from onefold.processor.io.all_tasks import EveryTask
from onefold.processor.io.group_membership import Membership
from onefold.processor.io.kafka_errors import check_reachable
from onefold.processor.io.partitions import Partitions, check_decision_log, check_states
from onefold.processor.io.replays import WithoutWithdrawn, withdrawn
from onefold.processor.io.tick_writer import TickWriter
from onefold.processor.loading import codec_of, topology_of
from onefold.processor.runtime.interval import Every
from onefold.processor.runtime.pool import TaskPool
from onefold.processor.runtime.task_metrics import Figures
from onefold.processor.tasks import IN_MEMORY, StateSettings, Tasks
from onefold.replication import AS_BROKERS, Replication
from onefold.telemetry import SILENT, TASKS, TO_FOLD, Telemetry

log = structlog.get_logger()

# Exceeds the longest legal time of a transaction without a step: a new producer (20 s), a delivery (10 s) and a repeated commit
# (30 s). An isolated record takes two transactions while the other tasks wait. If the broker needs the longest time for both,
# the watchdog ends the process, and the supervisor restarts the service.
WATCHDOG_S = 90.0
# The watchdog's timer is reset at most this often within WATCHDOG_S. Each reset ends one thread and starts another, while no
# other thread can run, so a reset in each round would cost too much.
ARMED_TIMES = 30
# How long to wait for an unavailable cluster or a missing input topic.
PATIENCE_S = 120.0
# Maximum time of the main thread's round. The group's heartbeats come from librdkafka's threads, independent of the rounds.
ROUND_S = 0.3

# Processing makes many objects and no cycles. At Python's own thresholds, the search for cycles would take much of the time.
GC_THRESHOLDS = (1_000_000, 50, 100)


def run(
    domain: str,
    *,
    client: Mapping[str, str],
    instance: str,
    status_file: Path | None = None,
    step: Callable[[str], None] = lambda name: None,
    schema_registry_url: str | None = None,
    patience_s: float = PATIENCE_S,
    watchdog_s: float = WATCHDOG_S,
    session_timeout_ms: int | None = None,
    replicas: int = 1,
    decisions_kept_s: float | None = None,
    replication: Replication = AS_BROKERS,
    states: StateSettings = IN_MEMORY,
    guarantee: Callable[[], None] = lambda: None,
    telemetry: Telemetry = SILENT,
) -> int:
    """Process a pipeline until SIGTERM or SIGINT. Returns the exit code.

    While the pipeline is paused, the process waits.

    Args:
        domain: the name of the pipeline.
        client: librdkafka settings, at least `bootstrap.servers`.
        instance: a name that survives a restart; unique among the instances of the pipeline.
        status_file: updated regularly, see `onefold.status_file`.
        step: called with the name of each step that a task reaches.
        patience_s: how long to wait for an unavailable cluster or a missing input topic.
        watchdog_s: the time without a step after which a task counts as hung; the process ends with a trace of every thread.
        session_timeout_ms: the time after which the group reassigns a killed instance's tasks; None: the default, by the number
            of brokers.
        replicas: how many instances compute each task concurrently; 1: a group shares the tasks among the instances.
        decisions_kept_s: the minimum age of a deleted record of the decision log, in seconds; None: the log keeps all records.
        replication: the replication of created topics.
        states: the location of the states.
        guarantee: checks the cluster's guarantees once the topics exist, before the first read. Raises `Refused`.
        telemetry: receives metrics and progress.
    """
    telemetry.stands(domain, "", time.monotonic(), "it waits for Kafka and its topics, or joins its group")
    with ServiceProcess(status_file) as process:
        stop = process.stop
        topology = topology_of(domain)
        codec = _codec(topology, client, schema_registry_url)
        gc.set_threshold(*GC_THRESHOLDS)
        with closing(Pausable(client, domain, process, telemetry)) as pausable:
            while not stop.is_set():
                # Wait before, so that a running reset's topics are not created again; and after, because Kafka may have been
                # unavailable before.
                pausable.waits()
                admin, partitions = _wait_for_topics(
                    topology, client, process, patience_s, guarantee, replication, hot=replicas > 1
                )
                if pausable.waits() or stop.is_set():
                    continue
                tasks = Tasks(
                    topology, codec, client, admin, instance, partitions, replicas, states, decisions_kept_s, step
                )
                pool = TaskPool(tasks.make, clock=time.monotonic, figures=Figures(telemetry, domain))
                start = partial(_start, pool, partitions, admin, replicas > 1)
                assignment: Assignment
                if replicas > 1:
                    assignment = EveryTask(topology, client, instance, partitions, start, stop.wait, session_timeout_ms)
                else:
                    assignment = Membership(topology, client, instance, start, pool.stop, session_timeout_ms)
                clock = TickWriter(topology, client) if topology.tick is not None else None
                with closing(Partitions(topology, admin, partitions, telemetry)) as watched:
                    watched.watch()
                    made = _Instance(domain, pool, assignment, watchdog_s, clock, telemetry, watched)
                    made.run(process, pausable.halts)
                # Clients are in reference cycles, which Python collects rarely. Free them before the next round makes new
                # clients.
                del tasks, pool, start, assignment, clock, made
                gc.collect()
    return process.exit_code


def _start(pool: TaskPool, partitions: int, admin: Admin, replicated: bool, given: Iterable[int]) -> None:
    """Start all assigned tasks, or none if the process may not open enough files.

    The group also assigns partitions that were added later. Such partitions have no task (see `Partitions`).
    """
    wanted = [partition for partition in given if partition < partitions]
    open_files.check(pool.tasks + len(wanted), open_files.brokers_of(admin), replicated=replicated)
    pool.start(wanted)


def _codec(topology: Topology, client: Mapping[str, str], schema_registry_url: str | None) -> Callable[[], Codec]:
    """Return a factory that makes the codec of one run of a task, with the replays and drops before the start of the run.

    The receipts are read again for each run, because a reset may lie between two runs.
    """
    plain = codec_of(topology, schema_registry_url)

    def codec() -> Codec:
        receipts = withdrawn(topology, client)
        return WithoutWithdrawn(plain, receipts) if receipts else plain

    return codec


class _Instance:
    """The main thread of an instance: polls the group, watches the tasks, reports their progress, and writes ticks."""

    def __init__(
        self,
        domain: str,
        pool: TaskPool,
        assignment: Assignment,
        watchdog_s: float,
        clock: TickWriter | None,
        telemetry: Telemetry,
        watched: Partitions | None = None,
    ) -> None:
        self._domain = domain
        self._watched = watched
        self._telemetry = telemetry
        self._pool = pool
        self._assignment = assignment
        self._watchdog_s = watchdog_s
        self._arming = Every(watchdog_s / ARMED_TIMES, time.monotonic)
        self._clock = clock

    def run(self, process: ServiceProcess, halts: Callable[[], bool]) -> None:
        """Run rounds until a stop is requested, or `halts` returns True."""
        self._arm()
        try:
            process.watch(self.look, halts=halts)
        finally:
            self._pool.stop_all()
            self._telemetry.put(TASKS, 0, domain=self._domain)
            self._assignment.close()
            if self._clock is not None:
                self._clock.close()
            faulthandler.cancel_dump_traceback_later()

    def look(self) -> tuple[str, str]:
        """Run one round of about `ROUND_S` at most. Returns the state of the process and a detail."""
        state, detail = self._state()
        self._pool.check()
        self._assignment.publish(self._pool.offsets_next())
        self._tell()
        if self._clock is not None:
            self._clock.strike(self._pool.caught_up())
        if self._pool.silent_for_s() < self._watchdog_s and self._arming.is_due():
            self._arm()
        trouble = self._watched.trouble if self._watched is not None else ""
        return state, "; ".join(filter(None, (trouble, detail)))

    def _tell(self) -> None:
        self._telemetry.put(TASKS, self._pool.tasks, domain=self._domain)
        self._telemetry.put(TO_FOLD, self._pool.lag(), domain=self._domain)
        if self._assignment.assigned_once:
            self._telemetry.stands(self._domain, "", *self._pool.quietest())

    def _state(self) -> tuple[str, str]:
        try:
            self._assignment.poll(ROUND_S)
        except Retriable as error:
            return "waiting", str(error)
        if not self._assignment.assigned_once:
            return "starting", "joining the group that shares the tasks"
        return self._pool.summary()

    def _arm(self) -> None:
        """Reset the watchdog's timer, which runs outside Python: a hang in compiled code may block every Python thread.

        On expiry, the timer prints the trace of every thread and ends the process. The supervisor restarts the service.
        """
        faulthandler.dump_traceback_later(self._watchdog_s, exit=True)


def _wait_for_topics(
    topology: Topology,
    client: Mapping[str, str],
    process: ServiceProcess,
    patience_s: float,
    guarantee: Callable[[], None],
    replication: Replication,
    *,
    hot: bool,
) -> tuple[Admin, int]:
    """Wait for the input topics, and create all other topics. Returns the admin client and the number of partitions."""
    deadline = time.monotonic() + patience_s
    said = ""
    while not process.stop.is_set():
        try:
            check_reachable(client)  # first: a client without a broker doubles its wait between tries
            admin = connect(client)
            partitions = partitions_of(admin, topology)
            create_topics(topology, partitions, client, inputs=False, decisions=hot, replication=replication)
            check_states(admin, topology, partitions, client)
            if hot:
                check_decision_log(admin, topology, partitions)
            guarantee()
            return admin, partitions
        except Retriable as error:
            if isinstance(error, Unauthenticated):
                raise
            if time.monotonic() > deadline:
                raise Retriable(error.code, f"{error} (waited {patience_s:.0f} s)") from error
            process.status.write("waiting", str(error))
            if str(error) != said:
                log.warning("waiting", reason=str(error), code=str(error.code))
                said = str(error)
        process.stop.wait(1.0)
    return connect(client), 0
