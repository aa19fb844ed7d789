"""One processor instance, put together: the only place where topologies, runtime and Kafka meet."""

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

# Longer than the longest legal silence of a transaction: a new producer (20 s), a delivery (10 s) and a commit that is
# called again (30 s). A record that is folded alone takes two of them, and the other tasks wait: a broker that needs so long
# for both ends the process, which starts again.
WATCHDOG_S = 90.0
# Within that time it is put off so often. Each time its thread ends and another one begins, while no other thread can run: in
# each round that was 2 % of a core.
ARMED_TIMES = 30
# How long to wait for a cluster, or an input topic, that is not there yet.
PATIENCE_S = 120.0
# The main thread's rhythm: heartbeats of the group are in librdkafka's threads and do not depend on it.
ROUND_S = 0.3

# Folding makes many objects and no cycles. To look for cycles took a fifth of the time at Python's own thresholds, and 8
# to 10 % at a hundred thousand; at a million it is lost in the noise.
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
    """Process a domain until SIGTERM or SIGINT, unless it is paused. Returns the exit code.

    Args:
        client: librdkafka settings, at least `bootstrap.servers`.
        instance: a name that survives a restart; unique among the instances of the domain.
        status_file: kept fresh, see `onefold.status_file`.
        patience_s: how long to wait for a cluster or an input topic that is not there yet.
        watchdog_s: a task that makes no step for so long has hung; the process ends with a trace of every thread.
        session_timeout_ms: a killed instance's tasks go to the others after this time; None: the default for so many brokers.
        replicas: how many instances compute each task side by side; 1: a group shares the tasks among the instances.
        decisions_kept_s: how old a record of the decision log is at least when it is deleted; None: none is.
        replication: of the topics that it makes.
        states: where states are.
        guarantee: called when the topics are there, before a record is read. Raises `Refused`.
        telemetry: told what it does, and whether it gets on.
    """
    telemetry.stands(domain, "", time.monotonic(), "it waits for Kafka and its topics, or joins its group")
    with ServiceProcess(status_file) as process:
        stop = process.stop
        topology = topology_of(domain)
        codec = _codec(topology, client, schema_registry_url)
        gc.set_threshold(*GC_THRESHOLDS)
        with closing(Pausable(client, domain, process, telemetry)) as pausable:
            while not stop.is_set():
                # Before: while a reset is under way nobody makes the topics again. After: Kafka may not have been there before.
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
                # Clients are in cycles, which are collected seldom: without this the next life would have them beside its own.
                del tasks, pool, start, assignment, clock, made
                gc.collect()
    return process.exit_code


def _start(pool: TaskPool, partitions: int, admin: Admin, replicated: bool, given: Iterable[int]) -> None:
    """Begin all of these tasks, or none. The group also gives partitions that were added since; no task of these has states (see
    `Partitions`).
    """
    wanted = [partition for partition in given if partition < partitions]
    open_files.check(pool.tasks + len(wanted), open_files.brokers_of(admin), replicated=replicated)
    pool.start(wanted)


def _codec(topology: Topology, client: Mapping[str, str], schema_registry_url: str | None) -> Callable[[], Codec]:
    """For each life of a task, by what was replayed or dropped by then: the life before may be from before a reset."""
    plain = codec_of(topology, schema_registry_url)

    def codec() -> Codec:
        receipts = withdrawn(topology, client)
        return WithoutWithdrawn(plain, receipts) if receipts else plain

    return codec


class _Instance:
    """The main thread of an instance: stays in the group, watches the tasks, tells how they are, and what time it is."""

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
        """Until asked to stop, or `halts` says so."""
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
        """One round, of at most `ROUND_S`. Returns the state of the process and a detail."""
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
        """A hang in compiled code holds every Python thread back or none of them: this timer is outside Python's reach.

        It prints where every thread stands and ends the process; the supervisor starts it again.
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
    """Wait for the inputs, and make the topics that are written to. Returns the process's admin client and the number of
    partitions.
    """
    deadline = time.monotonic() + patience_s
    said = ""
    while not process.stop.is_set():
        try:
            check_reachable(client)  # before there is a client, which would wait longer and longer between two tries
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
