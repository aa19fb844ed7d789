"""Reset a pipeline: delete all data derived from its inputs, so the next run starts at the beginning of the inputs.

The derived data is in two systems, and side effects are outside of both. A reset may crash between any two steps. Then the user
must repeat the reset from step 0, and until then no service continues with partial data:

    0. Take the lock that the pipeline's sinks and workers share (`onefold.pipeline_lock`), with one session for the whole
       reset. Immediately before each deletion check that the session still exists (`onefold.operate.reset.session`). Then try
       step 3 and roll back: a refusal of PostgreSQL is known before any deletion.
    1. In every partition of the changelog write a marker in place of the progress, with the task's own transactional id. A
       processor that still runs is fenced, and no processor can start from the marker.
    2. Delete the topics of processors and workers, except the changelog. Without its queue no worker starts.
    3. In one PostgreSQL transaction empty the tables, and forget the positions and the jobs. The transaction also removes rows
       that a sink wrote during step 2. With `keep_tables` rows and positions stay. The positions belong to deleted topics, so
       no sink writes anything before `onefold rebuild` has replaced rows and positions.
    4. Remove the side effects of the jobs, for example objects.
    5. Delete the consumer groups, and last the changelog.
    6. Create the topics again, with the number of partitions of the inputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import chain
from typing import Any

import psycopg
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from onefold import kafka_ask, kafka_client, pipeline_lock
from onefold.config.errors import UserError, of_postgres
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED, UNAVAILABLE
from onefold.operate import offsets, pausing, pipelines, replicas
from onefold.operate.dead_letters.letters import DeadLetters, said
from onefold.operate.dead_letters.parked import half_released
from onefold.operate.reset import empty_tables
from onefold.operate.reset.plan import ResetJobs, ResetPlan
from onefold.operate.reset.session import AGAIN, ResetSession, alone, refuse_beside_others
from onefold.postgres import HeldUp
from onefold.processor import loading
from onefold.processor.core.abc import transactional_id
from onefold.processor.core.changelog_format import RESETTING
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.io import admin, replays
from onefold.processor.io.kafka_errors import unanswered
from onefold.processor.io.static_member import session_ms
from onefold.waiting import until

#: The steps, for tests that end a reset after a step.
STEPS = ("marked", "topics", "tables", "jobs", "group", "inputs", "changelog", "made")

_CALL_S = 15.0
# A broker deletes a topic in a tenth of a second; a loaded broker may take longer.
_DELETED_S = 60.0
_LOOK_AGAIN_S = 0.05
# A paused sink ends the batch, and a worker stops the job at the next checkpoint. A slower service is named.
_HANDED_OVER_S = 30.0
# A replica with a decision log record of at most this age may be running.
RECENT_S = 5.0
_NOTHING_YET = "Nothing more was deleted; run it again when that is mended."


class Reset:
    """The reset of one pipeline. Methods raise UserError, with one sentence, for an unreachable server and for a refused
    action.

    Args:
        inputs: also delete the input topics with all records.
        keep_tables: leave the tables for readers, until a rebuild.
        jobs: of a pipeline with jobs.
    """

    def __init__(
        self,
        domain: str,
        settings: Settings,
        *,
        inputs: bool = False,
        keep_tables: bool = False,
        jobs: ResetJobs | None = None,
    ) -> None:
        (self.name,) = pipelines.checked([domain])
        if bool(pipelines.found()[self.name].jobs) != (jobs is not None):
            raise ValueError(f"the jobs of {self.name} are handed in exactly when it has some")
        self._jobs = jobs
        self._settings = settings
        self._client = settings.usable_client()
        self._dsn = settings.postgres()
        self._inputs = inputs
        self._keep_tables = keep_tables
        #: Whether the pipeline was paused at the check for running services.
        self.paused = False
        with said(self._client):
            self._topology: Topology = loading.topology_of(self.name)
            self._kafka: AdminClient = admin.connect(self._client)
        self._refuse_what_others_need()

    def _refuse_what_others_need(self) -> None:
        """Raises UserError (exit code 3) if the reset would delete data of another pipeline, or could not delete all data of
        this pipeline.
        """
        if self._jobs is not None and self._keep_tables:
            raise UserError(
                Code.ARGUMENT_WRONG,
                f"{self.name} has jobs, and its workers would take the rows that stay for those of the new records",
                "Leave --keep-tables out.",
                REFUSED,
            )
        if foreign := set(self._reports) - (set(self._topology.inputs) - set(self._topology.fed)):
            raise UserError(
                Code.JOBS_WRONG,
                f"reports names {min(foreign)}, which is no input of {self.name} that its workers write",
                "Take it out: what is in that list is deleted.",
                REFUSED,
            )
        others = pipelines.topics_of_others(self.name)
        deleted = [*self._derived(), *(self._own_inputs() if self._inputs else [])]
        if shared := [topic for topic in deleted if topic in others]:
            raise UserError(
                Code.SHARED_DATA,
                f"{shared[0]} is a topic of {others[shared[0]]} too, and would be deleted",
                f"Start {others[shared[0]]} over by hand at the same time, or not at all.",
                REFUSED,
            )

    def plan(self) -> ResetPlan:
        """Collect the objects that a reset would delete now."""
        topology = self._topology
        with said(self._client):
            there = admin.existing(self._kafka)
            sizes = self._sizes([topic for topic in (*self._derived(), *topology.reads) if topic in there], there)
            # A reset of the inputs deletes the receipts too, without reading them, because receipts may be corrupted.
            known = not self._inputs and topology.replays in there
            withdrawn = replays.withdrawn(topology, self._client) if known else {}
            # The receipt of a copy is also the receipt of its original.
            receipts = {receipt for place, receipt in withdrawn.items() if place[0] in self._own_inputs()}
            dropped = sum(receipt.dropped is not None for receipt in receipts)
        with self._postgres() as connection:
            tables = empty_tables.written(connection, self.name)
            mine = empty_tables.of_schema(connection, self.name)
            jobs = empty_tables.jobs(connection, self._queues)
            landed = offsets.landed(self._dsn, self.name)
        deleted = [topic for topic in self._derived() if topic in sizes]
        kept = [topic for topic in self._own_inputs() if topic in sizes]
        return ResetPlan(
            self.name,
            {topic: sizes[topic] for topic in [*deleted, *(kept if self._inputs else [])]},
            admin.group_of(topology),
            {} if self._keep_tables else tables,
            sorted(mine - tables.keys()),
            0 if self._keep_tables else len(landed),
            {} if self._inputs else {topic: sizes[topic] for topic in kept},
            len(receipts) - dropped,
            [*tables] if self._keep_tables else [],
            jobs,
            self._jobs.leftovers(inputs=self._inputs) if self._jobs is not None else (),
            dropped,
        )

    def refuse_while_running(self) -> None:
        """Raises UserError (exit code 3) while a processor, worker or sink of the pipeline is visibly running."""
        services = self._settings.running.get("services", {})
        mine = [
            name for name in services if name.startswith((f"processor-{self.name}-", f"worker-{self.name}-", "sink-"))
        ]
        self.paused = bool(mine) and pausing.is_paused(self._settings, self.name)
        if mine and not self.paused:
            raise UserError(
                Code.STILL_RUNNING,
                f"{self.name} runs: {', '.join(mine)}",
                f"Run `onefold pause {self.name}`, and ask again.",
                REFUSED,
            )
        with self._postgres() as connection:
            if sinks := offsets.sinks_without_lock(connection):
                raise UserError(
                    Code.STILL_RUNNING,
                    f"a sink that starts, or is of an older release, has a session in the database: {', '.join(sinks)}",
                    "Ask again in a minute, or stop it.",
                    REFUSED,
                )
            if self.paused or pausing.is_paused(self._settings, self.name):
                self.paused = True
                self._wait_for_the_end_of_services(connection)
            refuse_beside_others(connection, self.name)
        self._wait_for_the_end_of("workers", lambda: [*chain.from_iterable(map(self._members, self._worker_groups))])
        groups = admin.group_of(self._topology), admin.replicas_group_of(self._topology)
        self._wait_for_the_end_of(
            "processors", lambda: [*chain.from_iterable(map(self._members, groups)), *self._replicas()]
        )
        self._refuse_half_released_keys()

    def _refuse_half_released_keys(self) -> None:
        """Raises UserError (exit code 3) for a half-released key. The new run would process a replayed record at the place of
        its replay, and a waiting record earlier, at its original place.
        """
        with said(self._client):
            there = admin.existing(self._kafka)
        if (
            self._inputs
            or self._topology.on_dead_letter != "park"
            or not there.keys() >= {*self._topology.dead.values()}
        ):
            return
        park = half_released(DeadLetters(self.name, self._settings))
        if park is not None:
            raise UserError(
                Code.REPLAYED,
                f"the key {park.key} is parked behind {park.at}, and some of its events were replayed or dropped: after a reset "
                f"the key would have another order",
                f"Start {self.name}, run `onefold dead-letters replay {self.name} --all`, and ask again.",
                REFUSED,
            )

    @property
    def _queues(self) -> Sequence[str]:
        return self._jobs.queues if self._jobs is not None else ()

    @property
    def _reports(self) -> Sequence[str]:
        return self._jobs.reports if self._jobs is not None else ()

    @property
    def _worker_groups(self) -> Sequence[str]:
        return self._jobs.groups if self._jobs is not None else ()

    def run(self, step: Callable[[str], None] = lambda name: None) -> None:
        """Execute the reset. After a crash at any step a new call completes the reset.

        Args:
            step: called with the name of each step after the step.
        """
        with alone(self._dsn, self.name) as session, said(self._client):
            self._run(session, step)

    def _run(self, session: ResetSession, step: Callable[[str], None]) -> None:
        topology = self._topology
        there = admin.existing(self._kafka)
        sizes = [there[topic] for topic in (*self._own_inputs(), topology.changelog) if topic in there]
        self._empty_tables(session, really=False)
        self._mark(session, there.get(topology.changelog, 0))
        step("marked")
        self._delete(session, [topic for topic in self._derived() if topic not in {topology.changelog, *self._reports}])
        step("topics")
        self._empty_tables(session)
        step("tables")
        if self._jobs is not None:
            self._jobs.start_over(inputs=self._inputs, still=session.still)
        step("jobs")
        self._delete_group(session, admin.group_of(topology), "processors")  # waits for the fenced processors
        for group in self._worker_groups:
            self._delete_group(session, group, "workers")
        step("group")
        if gone := [*self._reports, *([*self._own_inputs(), topology.replays] if self._inputs else [])]:
            # Reports and inputs go before the changelog: without the marker a processor would start with their leftovers. They
            # go after the groups: a processor without an input waits without a reason in its status.
            self._delete(session, gone)
            step("inputs")
        self._delete(session, [topology.changelog])
        step("changelog")
        partitions = sizes[0] if sizes else self._settings.partitions
        hot = self._settings.replicas_of(pipelines.found()[self.name]) > 1
        session.still()
        admin.create_topics(topology, partitions, self._client, decisions=hot, replication=self._settings.replication())
        step("made")

    def _derived(self) -> list[str]:
        """The topics of the pipeline and its workers, the changelog last. Receipts of replays are excluded: they belong
        to the inputs.
        """
        topology = self._topology
        others = [topology.order, topology.ticks, topology.decisions]
        named = [*topology.outputs, *topology.dead.values(), *(topic for topic in others if topic is not None)]
        named += self._jobs.topics if self._jobs is not None else ()
        return [*dict.fromkeys(named), topology.changelog]

    def _own_inputs(self) -> list[str]:
        """The inputs from external producers."""
        others = {*self._topology.fed, *self._reports}
        return [topic for topic in self._topology.inputs if topic not in others]

    def _sizes(self, topics: Collection[str], there: Mapping[str, int]) -> dict[str, int]:
        found = dict.fromkeys(topics, 0)
        for topic in found:
            for partition in range(there[topic]):
                at = admin.identity(self._kafka, topic, partition)
                found[topic] += at.end - at.start
        return found

    def _members(self, group: str) -> list[str]:
        with said(self._client):
            try:
                described = self._kafka.describe_consumer_groups([group], request_timeout=_CALL_S)[group].result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                    return []
                raise unanswered(error, f"the group {group} cannot be described", self._kafka) from None
        return sorted(member.group_instance_id or member.client_id for member in described.members or ())

    def _wait_for_the_end_of_services(self, connection: psycopg.Connection[Any]) -> None:
        """Wait until the sinks and workers of a paused pipeline have ended their current batch or job."""
        ended = lambda: all(holder.alone for holder in pipeline_lock.holders(connection, self.name))  # noqa: E731
        until(ended, _HANDED_OVER_S, _LOOK_AGAIN_S)

    def _wait_for_the_end_of(self, who: str, running: Callable[[], list[str]]) -> None:
        """Wait for the end of all members, at most 1.5 session time-outs. A static member stays in the group until its session
        ends, even after a clean stop.
        """
        session = session_ms(self._client, self._settings.session_timeout_ms())
        until(lambda: not running(), 1.5 * session / 1000, _LOOK_AGAIN_S)
        if found := running():
            raise UserError(
                Code.STILL_RUNNING, f"{self.name} has {who}: {', '.join(found)}", "Stop them, and ask again.", REFUSED
            )

    def _replicas(self) -> list[str]:
        """Replicas without group membership, by a missing right or of an older version: replicas with a recent record in the
        decision log.
        """
        now = replicas.replicas_of_all(self._settings, only=self.name).get(self.name)
        return [name for name, one in now.replicas.items() if one.last_s < RECENT_S] if now else []

    def _mark(self, session: ResetSession, partitions: int) -> None:
        """Fence every task, and leave a marker in its changelog from which no processor can start. The session check comes
        after Kafka has the record: so either no second reset has begun before the record, or the record is aborted.
        """
        for partition in range(partitions):
            producer = kafka_client.producer(
                {
                    **self._client,
                    "transactional.id": transactional_id(self.name, partition),
                }
            )
            try:
                producer.init_transactions(_CALL_S * 2)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                    raise
                what = f"write with the transactional id {transactional_id(self.name, partition)}"
                raise UserError.of(kafka_client.cannot(self._client, what)) from None
            producer.begin_transaction()
            producer.produce(self._topology.changelog, json.dumps(RESETTING).encode(), PROGRESS_KEY, partition)
            try:
                if producer.flush(_CALL_S * 2):
                    raise UserError(
                        Code.TOPIC_UNWRITABLE,
                        f"Kafka did not take what is written to {self._topology.changelog} in {_CALL_S * 2:.0f} s",
                        "Run `onefold reset` again when Kafka answers; until then the pipeline may not go on.",
                        UNAVAILABLE,
                    )
                session.still()
            except UserError:
                with suppress(KafkaException):  # the broker aborts the transaction at the time-out anyway
                    producer.abort_transaction(_CALL_S * 2)
                raise
            producer.commit_transaction(_CALL_S * 2)

    def _delete(self, session: ResetSession, topics: Sequence[str]) -> None:
        there = [topic for topic in topics if topic in admin.existing(self._kafka)]
        if not there:
            return
        session.still()
        for topic, answer in kafka_ask.delete_topics(self._kafka, there, _CALL_S).items():
            try:
                answer.result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise UserError.of(kafka_client.cannot(self._client, f"delete {topic}")) from None
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise UserError(
                        Code.TOPIC_UNDELETED,
                        f"topic {topic} could not be deleted: {error.args[0].str()}",
                        "What was deleted before stays deleted; run `onefold reset` again when that is mended.",
                    ) from None
        if not until(lambda: not self._there(there), _DELETED_S, _LOOK_AGAIN_S):
            raise UserError(
                Code.TOPIC_UNDELETED, f"Kafka has not deleted {', '.join(there)} in {_DELETED_S:.0f} s", "Run it again."
            )

    def _there(self, topics: Sequence[str]) -> bool:
        """Whether any of the topics can still be described."""
        for answer in kafka_ask.describe_topics(self._kafka, topics, _CALL_S)().values():
            try:
                answer.result()
                return True
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return False

    def _delete_group(self, session: ResetSession, group: str, who: str) -> None:
        self._wait_for_the_end_of(who, lambda: self._members(group))
        session.still()
        try:
            self._kafka.delete_consumer_groups([group], request_timeout=_CALL_S)[group].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise

    def _empty_tables(self, session: ResetSession, *, really: bool = True) -> None:
        """Empty the tables, and forget positions and jobs; or only check that PostgreSQL permits both."""
        try:
            with session.connection.transaction(force_rollback=not really):
                empty_tables.empty(session.connection, self.name, keep_tables=self._keep_tables, queues=self._queues)
        except psycopg.Error as error:
            hint = AGAIN if really else _NOTHING_YET
            unknown = isinstance(error, HeldUp) and error.unknown
            what = "whether PostgreSQL did it is not known" if unknown else "PostgreSQL did not do it"
            raise of_postgres(error, what, hint) from None

    def _postgres(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        return empty_tables.transaction(self._dsn, AGAIN)
