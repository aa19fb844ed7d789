"""One processor instance, put together: the only place where topologies, runtime and Kafka meet."""

import faulthandler
import gc
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import structlog

from onefold.exit_codes import REFUSED, UNAVAILABLE, USAGE
from onefold.kafka_client import Admin
from onefold.processor.core.abc import Assignment, Codec
from onefold.processor.core.errors import Misconfigured, Refused, Retriable, Unauthenticated
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import connect, create_topics, last_progresses, partitions_of
from onefold.processor.io.decision_log import KafkaDecisionLog
from onefold.processor.io.inputs import KafkaInputs
from onefold.processor.io.kafka import KafkaSession
from onefold.processor.io.kafka_errors import check_reachable
from onefold.processor.io.membership import Membership
from onefold.processor.io.open_files import within_limit
from onefold.processor.io.partitions import Partitions, check_decision_log, check_states
from onefold.processor.io.presence import Presence
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.io.replays import WithoutReplayed, replayed
from onefold.processor.io.tick_writer import Clock
from onefold.processor.kept import IN_MEMORY, Kept, keeping
from onefold.processor.loading import codec_of, topology_of
from onefold.processor.runtime.assignment import EveryTask
from onefold.processor.runtime.every import Every
from onefold.processor.runtime.figures import Figures
from onefold.processor.runtime.keeping import Keeping
from onefold.processor.runtime.log_decider import LogDecider
from onefold.processor.runtime.pool import TaskPool
from onefold.processor.runtime.publisher import Publisher
from onefold.processor.runtime.publishing import TAKEOVER_S, Publishing
from onefold.processor.runtime.retention import Retention
from onefold.processor.runtime.takeover import TaskShares
from onefold.processor.runtime.task import Task
from onefold.processor.runtime.transact import TransactionDecider
from onefold.status_file import Status
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
# How long the broker gathers records for a replica: decisions come about so often. Without it there is a fetch, and a decision,
# for every few records, by every replica; at 1,000 events/s that filled two cores, and events waited 0.1 to 0.5 s for a turn.
REPLICA_FETCH_WAIT_MS = 14

#: Where the states of a task are, given what tells of a long restore.
Keep = Callable[[Topology, Codec, int, Callable[[], None]], Keeping]


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
    kept: Kept = IN_MEMORY,
    guarantee: Callable[[], None] = lambda: None,
    telemetry: Telemetry = SILENT,
) -> int:
    """Process a domain until SIGTERM or SIGINT. Returns the exit code.

    Args:
        client: librdkafka settings, at least `bootstrap.servers`.
        instance: a name that survives a restart; unique among the instances of the domain.
        status_file: kept fresh, see `onefold.status_file`.
        patience_s: how long to wait for a cluster or an input topic that is not there yet.
        watchdog_s: a task that makes no step for so long has hung; the process ends with a trace of every thread.
        session_timeout_ms: a killed instance's tasks go to the others after this time; None: the default for so many brokers.
        replicas: how many instances compute each task side by side; 1: a group shares the tasks among the instances.
        decisions_kept_s: how old a record of the decision log is at least when it is deleted; None: none is.
        kept: where states are kept.
        guarantee: called when the topics are there, before a record is read. Raises `Refused`.
        telemetry: told what it does, and whether it gets on.
    """
    stop, status = _stopped_by_signals(), Status(status_file)
    telemetry.stands(domain, "", time.monotonic(), "it waits for Kafka and its topics, or joins its group")
    pool_of = partial(TaskPool, clock=time.monotonic, figures=Figures(telemetry, domain))
    try:
        topology = topology_of(domain)
        codec = _codec(topology, client, schema_registry_url)
        partitions = _wait_for_topics(topology, client, status, stop, patience_s, guarantee, hot=replicas > 1)
        gc.set_threshold(*GC_THRESHOLDS)
        keep = partial(keeping, kept, partitions, replicas, step)
        watched = Partitions(topology, client, partitions, telemetry)
        watched.watch(stop)
        admin = connect(client)
        if replicas > 1:
            retention = _retentions(topology, client, admin, decisions_kept_s, step)
            pool = pool_of(_replicas(topology, codec, client, admin, instance, step, retention, keep, partitions))
            seen_by = Presence(topology, client, instance, session_timeout_ms)
            start = within_limit(pool, client, replicated=True)
            assignment: Assignment = EveryTask(partitions, start, stop.wait, seen_by)
        else:
            pool = pool_of(_tasks(topology, codec, client, admin, instance, step, keep, partitions))
            start = partial(_start, within_limit(pool, client, replicated=False), partitions)
            assignment = Membership(topology, client, instance, start, pool.stop, session_timeout_ms)
        clock = Clock(topology, client, pool.caught_up) if topology.tick is not None else None
        _Instance(domain, pool, assignment, watchdog_s, clock, telemetry, lambda: watched.trouble).run(status, stop)
    except (Refused, Unauthenticated, Retriable) as error:
        return _ended(error, status, patience_s)
    finally:
        faulthandler.cancel_dump_traceback_later()
    status.write("stopped", "asked to stop")
    return 0


def _ended(error: Refused | Retriable, status: Status, patience_s: float) -> int:
    """Say why the process ends. Returns the exit code."""
    status.write("stopped", str(error))
    if isinstance(error, Refused | Unauthenticated):
        log.error(str(error), code=str(error.code))
        return USAGE if isinstance(error, Misconfigured) else REFUSED
    log.error(f"{error} (waited {patience_s:.0f} s)", code=str(error.code))
    return UNAVAILABLE


def _stopped_by_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _start(start: Callable[[list[int]], None], partitions: int, given: Sequence[int]) -> None:
    """The group also gives partitions that were added since; no task of these has states (see `Partitions`)."""
    start([partition for partition in given if partition < partitions])


def _tasks(
    topology: Topology,
    make_codec: Callable[[], Codec],
    client: Mapping[str, str],
    admin: Admin,
    instance: str,
    step: Callable[[str], None],
    keep: Keep,
    partitions: int,
) -> Callable[[int, Callable[[], None]], Task]:
    """Tasks that decide by Kafka transactions. `partitions`: of the inputs."""
    compute_lock = threading.Lock()

    def make(partition: int, beat: Callable[[], None]) -> Task:
        session = KafkaSession(topology, partition, client, partitions=partitions, admin=admin)

        def take_back() -> None:
            check_decision_log(admin, topology, partitions)
            decisions = KafkaDecisionLog(topology.decisions, partition, client, admin)
            try:
                publisher = Publisher(topology, partition, instance, session, decisions, MsgpackProposals(), step)
                publisher.take_back(beat)
            finally:
                decisions.close()

        codec = make_codec()
        decider = TransactionDecider(topology, session, step, take_back)
        kept = keep(topology, codec, partition, beat)
        return Task(topology, session, codec, decider, step, beat, compute_lock, keeping=kept, clock=time.monotonic)

    return make


def _codec(topology: Topology, client: Mapping[str, str], schema_registry_url: str | None) -> Callable[[], Codec]:
    """For each life of a task, by what was replayed by then: the life before may be from before a reset."""
    plain = codec_of(topology, schema_registry_url)

    def codec() -> Codec:
        places = replayed(topology, client)
        return WithoutReplayed(plain, places) if places else plain

    return codec


def _retentions(
    topology: Topology,
    client: Mapping[str, str],
    admin: Admin,
    kept_s: float | None,
    step: Callable[[str], None],
) -> Callable[[int], Retention]:
    """What the publisher of a task deletes."""

    def retention(task: int) -> Retention:
        def committed() -> bytes | None:
            return last_progresses(admin, topology, [task], client).get(task)

        return Retention(kept_s, committed=committed, step=step, clock=time.monotonic)

    return retention


def _replicas(
    topology: Topology,
    codec: Callable[[], Codec],
    client: Mapping[str, str],
    admin: Admin,
    instance: str,
    step: Callable[[str], None],
    retention: Callable[[int], Retention],
    keep: Keep,
    partitions: int | None = None,
) -> Callable[[int, Callable[[], None]], Task]:
    """Tasks with replicas, decided in a log. `partitions`: of the inputs."""
    compute_lock = threading.Lock()
    proposals = MsgpackProposals()
    shares = TaskShares(instance, time.monotonic)

    def make(partition: int, beat: Callable[[], None]) -> Task:
        def decisions() -> KafkaDecisionLog:
            return KafkaDecisionLog(topology.decisions, partition, client, admin)

        def publisher() -> Publisher:
            session = KafkaSession(topology, partition, client, partitions=partitions, admin=admin)
            deletes = retention(partition)
            return Publisher(topology, partition, instance, session, decisions(), proposals, step, deletes)

        # By chance, so that not all replicas take over at once.
        timeout_s = TAKEOVER_S * (1 + random.random())  # noqa: S311
        task_codec = codec()
        inputs = KafkaInputs(
            topology, partition, client, fetch_wait_ms=REPLICA_FETCH_WAIT_MS, partitions=partitions, admin=admin
        )
        decider = LogDecider(
            topology,
            instance,
            inputs,
            decisions(),
            KafkaSession(topology, partition, client, partitions=partitions, admin=admin),
            proposals,
            step,
            shares,
            lambda decider: Publishing(decider, publisher, timeout_s, clock=time.monotonic),
            clock=time.monotonic,
        )
        kept = keep(topology, task_codec, partition, beat)
        return Task(topology, inputs, task_codec, decider, step, beat, compute_lock, keeping=kept, clock=time.monotonic)

    return make


class _Instance:
    """The main thread of an instance: stays in the group, watches the tasks, tells how they are, and what time it is."""

    def __init__(
        self,
        domain: str,
        pool: TaskPool,
        assignment: Assignment,
        watchdog_s: float,
        clock: Clock | None,
        telemetry: Telemetry,
        trouble: Callable[[], str] = lambda: "",
    ) -> None:
        self._domain = domain
        self._trouble = trouble
        self._telemetry = telemetry
        self._pool = pool
        self._assignment = assignment
        self._watchdog_s = watchdog_s
        self._arming = Every(watchdog_s / ARMED_TIMES, time.monotonic)
        self._clock = clock

    def run(self, status: Status, stop: threading.Event) -> None:
        """Until asked to stop."""
        self._arm()
        try:
            while not stop.is_set():
                self._round(status)
        finally:
            self._pool.stop_all()
            self._assignment.close()
            if self._clock is not None:
                self._clock.close()

    def _round(self, status: Status) -> None:
        state, detail = self._state()
        self._pool.check()
        self._assignment.publish(self._pool.offsets_next())
        status.write(state, "; ".join(filter(None, (self._trouble(), detail))))
        self._tell()
        if self._clock is not None:
            self._clock.strike()
        if self._pool.silent_for_s() < self._watchdog_s and self._arming.is_due():
            self._arm()

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
    status: Status,
    stop: threading.Event,
    patience_s: float,
    guarantee: Callable[[], None],
    *,
    hot: bool,
) -> int:
    """Until the inputs are there; the topics that are written to are made. Returns the number of partitions."""
    deadline = time.monotonic() + patience_s
    said = ""
    while not stop.is_set():
        try:
            check_reachable(client)
            partitions = partitions_of(connect(client), topology)
            create_topics(topology, partitions, client, inputs=False, decisions=hot)
            check_states(connect(client), topology, partitions, client)
            if hot:
                check_decision_log(connect(client), topology, partitions)
            guarantee()
            return partitions
        except Retriable as error:
            if isinstance(error, Unauthenticated) or time.monotonic() > deadline:
                raise
            status.write("waiting", str(error))
            if str(error) != said:
                log.warning("waiting", reason=str(error), code=str(error.code))
                said = str(error)
        stop.wait(1.0)
    return 0
