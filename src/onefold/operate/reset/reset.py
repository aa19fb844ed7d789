"""Start a pipeline over: delete all that was derived from its inputs, so that it begins with them anew.

What is derived is in two systems, and what workers did lies outside of both. A reset may die between any two of its steps. It
is repeated from its beginning then, and until that has been done nobody goes on with a half of it:

    0. Take the lock that the pipeline's sinks and workers share (`onefold.pipeline_lock`), with a session for all of the reset.
       Right before whatever is deleted it is asked whether that session is there (`onefold.operate.reset.session`). Then try the
       third step, and take it back: what PostgreSQL does not do is known before anything is gone.
    1. In every partition of the changelog a record takes the place of the progress, by the task's own transactional id: a
       processor that runs after all is fenced, and none starts from there.
    2. Delete what the processors and the workers have written, but for the changelog. Without its queue no worker begins.
    3. In one transaction of PostgreSQL empty the tables, forget the positions, and which jobs are pending and done. A sink that
       has landed something after the topics were asked for has landed it before this, and it goes too. Where the tables are to
       keep their rows they keep the positions too: of topics that are gone, so that no sink lands anything before
       `onefold rebuild` has replaced both.
    4. Have the effects of the jobs remove what they have made, such as objects.
    5. Delete the consumer groups, and last the changelog.
    6. Make the topics again, with as many partitions as the inputs have.
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
from onefold.operate import pausing, pipelines, positions, replicas
from onefold.operate.dead_letters.letters import DeadLetters, said
from onefold.operate.dead_letters.parked import half_released
from onefold.operate.reset import emptying
from onefold.operate.reset.plan import Jobs, Plan
from onefold.operate.reset.session import AGAIN, Session, alone, refuse_beside_others
from onefold.postgres import HeldUp
from onefold.processor import loading
from onefold.processor.core.abc import transactional_id
from onefold.processor.core.stored import RESETTING
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.io import admin, replays
from onefold.processor.io.kafka_errors import unanswered
from onefold.processor.io.static_member import session_ms
from onefold.waiting import until

#: The steps, for tests that end a reset there. Each is named after it was taken.
STEPS = ("marked", "topics", "tables", "jobs", "group", "inputs", "changelog", "made")

_CALL_S = 15.0
# A broker deletes a topic in a tenth of a second; one that is loaded may take some.
_DELETED_S = 60.0
_LOOK_AGAIN_S = 0.05
# A paused sink ends a batch, and a worker a job at its next checkpoint. Who takes longer is named.
_HANDED_OVER_S = 30.0
# A replica whose last record in the decision log is not older may run.
RECENT_S = 5.0
_NOTHING_YET = "Nothing more was deleted; run it again when that is mended."


class Reset:
    """One pipeline's. Methods raise UserError, with one sentence, for a server that is away and for what must not be done.

    Args:
        inputs: also delete the input topics. Their records are gone then.
        keep_tables: leave the tables as they are, for their readers, until somebody rebuilds them.
        jobs: of a pipeline that has some.
    """

    def __init__(
        self,
        domain: str,
        settings: Settings,
        *,
        inputs: bool = False,
        keep_tables: bool = False,
        jobs: Jobs | None = None,
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
        #: Whether the pipeline was paused when it was asked whether it runs.
        self.paused = False
        with said(self._client):
            self._topology: Topology = loading.topology_of(self.name)
            self._kafka: AdminClient = admin.connect(self._client)
        self._refuse_what_others_need()

    def _refuse_what_others_need(self) -> None:
        """Raises UserError (exit code 3) where more than this pipeline's own numbers would be gone, or less than all of them."""
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

    def plan(self) -> Plan:
        """What would be deleted now."""
        topology = self._topology
        with said(self._client):
            there = admin.existing(self._kafka)
            sizes = self._sizes([topic for topic in (*self._derived(), *topology.reads) if topic in there], there)
            # With the inputs they go, also when they are broken.
            known = not self._inputs and topology.replays in there
            withdrawn = replays.withdrawn(topology, self._client) if known else {}
            # A receipt of a copy is also that of the original.
            receipts = {receipt for place, receipt in withdrawn.items() if place[0] in self._own_inputs()}
            dropped = sum(receipt.dropped is not None for receipt in receipts)
        with self._postgres() as connection:
            tables = emptying.written(connection, self.name)
            mine = emptying.of_schema(connection, self.name)
            jobs = emptying.jobs(connection, self._queues)
            landed = positions.landed(self._dsn, self.name)
        deleted = [topic for topic in self._derived() if topic in sizes]
        kept = [topic for topic in self._own_inputs() if topic in sizes]
        return Plan(
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
        """Raises UserError (exit code 3) while a processor, worker or sink of the pipeline runs, as far as that can be seen."""
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
            if sinks := positions.sinks_without_lock(connection):
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
        """The new run takes a replayed record where its replay lies, and one that waits where it lay: before that."""
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
        """Do it. May be called again after it has died at any step, and does the rest.

        Args:
            step: called with the name of each step after it was taken.
        """
        with alone(self._dsn, self.name) as session, said(self._client):
            self._run(session, step)

    def _run(self, session: Session, step: Callable[[str], None]) -> None:
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
        self._delete_group(session, admin.group_of(topology), "processors")  # waits for one that was fenced just now
        for group in self._worker_groups:
            self._delete_group(session, group, "workers")
        step("group")
        if gone := [*self._reports, *([*self._own_inputs(), topology.replays] if self._inputs else [])]:
            # Before the changelog: without its mark a processor would begin with what is left of them. And not sooner: without
            # an input it waits, and does not say why.
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
        """The topics that it and its workers write, the changelog last. Receipts of replays are as old as the inputs."""
        topology = self._topology
        others = [topology.order, topology.ticks, topology.decisions]
        named = [*topology.outputs, *topology.dead.values(), *(topic for topic in others if topic is not None)]
        named += self._jobs.topics if self._jobs is not None else ()
        return [*dict.fromkeys(named), topology.changelog]

    def _own_inputs(self) -> list[str]:
        """The topics that others write."""
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
        """Of a pipeline that is paused: sinks and workers end the batch or the job at hand."""
        ended = lambda: all(holder.alone for holder in pipeline_lock.holders(connection, self.name))  # noqa: E731
        until(ended, _HANDED_OVER_S, _LOOK_AGAIN_S)

    def _wait_for_the_end_of(self, who: str, running: Callable[[], list[str]]) -> None:
        """A named member stays in the group until its session is over, also when it was stopped in good order."""
        session = session_ms(self._client, self._settings.session_timeout_ms())
        until(lambda: not running(), 1.5 * session / 1000, _LOOK_AGAIN_S)
        if found := running():
            raise UserError(
                Code.STILL_RUNNING, f"{self.name} has {who}: {', '.join(found)}", "Stop them, and ask again.", REFUSED
            )

    def _replicas(self) -> list[str]:
        """Replicas that are in no group, for they may not, or are of an older version: those with a recent record in the decision
        log.
        """
        now = replicas.replicas_of_all(self._settings, only=self.name).get(self.name)
        return [name for name, one in now.replicas.items() if one.last_s < RECENT_S] if now else []

    def _mark(self, session: Session, partitions: int) -> None:
        """Take every task, and leave in its changelog what nobody goes on from. The session is asked after Kafka has the record:
        so either no other reset has begun by then, or nobody sees it.
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
                with suppress(KafkaException):  # the cluster ends by itself what it is not told to end
                    producer.abort_transaction(_CALL_S * 2)
                raise
            producer.commit_transaction(_CALL_S * 2)

    def _delete(self, session: Session, topics: Sequence[str]) -> None:
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
        """Whether one of them can still be described."""
        for answer in kafka_ask.describe_topics(self._kafka, topics, _CALL_S)().values():
            try:
                answer.result()
                return True
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return False

    def _delete_group(self, session: Session, group: str, who: str) -> None:
        self._wait_for_the_end_of(who, lambda: self._members(group))
        session.still()
        try:
            self._kafka.delete_consumer_groups([group], request_timeout=_CALL_S)[group].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise

    def _empty_tables(self, session: Session, *, really: bool = True) -> None:
        """Empty the tables, and forget what was landed and done; or only see whether that can be done."""
        try:
            with session.connection.transaction(force_rollback=not really):
                emptying.empty(session.connection, self.name, keep_tables=self._keep_tables, queues=self._queues)
        except psycopg.Error as error:
            hint = AGAIN if really else _NOTHING_YET
            unknown = isinstance(error, HeldUp) and error.unknown
            what = "whether PostgreSQL did it is not known" if unknown else "PostgreSQL did not do it"
            raise of_postgres(error, what, hint) from None

    def _postgres(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        return emptying.transaction(self._dsn, AGAIN)
