"""An upload from the client's first call to the last garbage collection, with a crash of any actor at any step.

The object store is real, job rows and tables are in a real PostgreSQL, and the real handler and codec run on a log in
memory. Steps are the points before and after each call of the store and each message, and the named steps of the
processor's loop, of the sink's transaction, and of the worker. Steps are counted, not listed, so new steps are covered
automatically. A crashed actor is restarted, as by a supervisor, except that a client may never return.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from io import BytesIO
from random import Random
from typing import Any

from onefold import pipelines
from onefold.config.errors import UserError
from onefold.jobs import topics
from onefold.jobs.apps.sheets import uploads
from onefold.jobs.apps.sheets.uploads import KeepOrDiscard, Message
from onefold.jobs.objects.store import ObjectStore
from onefold.jobs.pending import PostgresPending
from onefold.jobs.protocols import Effect, Mark, Objects
from onefold.jobs.worker import Limits
from onefold.processor.apps.sheets import TOPOLOGY
from onefold.processor.core.topology import Topology
from onefold.processor.io import contracts
from onefold.spark_sink.postgres.connection import connect
from onefold.testing import Crash, TopologyDriver
from tests.support.landed_lines import Lander
from tests.support.model_effect import worker_of
from tests.support.simulated_jobs import SimulatedQueue
from tests.support.uploads import CONTENT, NAME, Produce, World

QUEUE = "sheets.objects"
CALLS = ("create", "upload", "complete")
#: Actors except the client, in the order of the data flow.
OTHERS = ("fold", "land", "work")
#: Minimum age for a garbage collection of all objects, whatever the clocks of two machines say.
NO_PATIENCE = -5.0
# More rounds than any test needs, so that an endless loop fails.
_ROUNDS_MAX = 50
# Time until another worker takes a dead worker's job, by the test's clock.
_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Faults:
    """Injected faults. Steps are counted from 1, over all actors.

    Attributes:
        deadly: steps at which the present actor crashes.
        comes_back: whether a crashed client restarts.
        sleeps: steps at which the client sleeps, during a garbage collection and its consequences.
        sleep_s: duration of the sleep.
    """

    deadly: Collection[int] = ()
    comes_back: bool = True
    sleeps: Collection[int] = ()
    sleep_s: float = 0.0


@dataclass(frozen=True)
class Parts:
    """Code of client, garbage collection and worker; tests also use wrong versions."""

    create: Callable[..., uploads.Upload] = uploads.create
    upload: Callable[..., None] = uploads.upload
    complete: Callable[..., None] = uploads.complete
    sweep: Callable[[Objects, Produce, float], int] = uploads.sweep
    effect: Callable[[Objects], Effect] = KeepOrDiscard


@dataclass(frozen=True)
class End:
    """Final state.

    Attributes:
        entries: number of entries of the upload.
        told: whether the client was asked to upload again, by the call or by the table of refusals.
        objects: content of the objects in the store.
        marks: number of expiration markers.
    """

    entries: int
    told: bool
    objects: tuple[bytes, ...]
    marks: int


class _Fold(TopologyDriver):
    """The processor, with steps counted together with the others."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, partitions=2)
        self._empty = self.log
        self._told: Callable[[str], None] = lambda name: None

    def begin(self, step: Callable[[str], None]) -> None:
        """Begin with an empty log. Schemas and codec are reused, because building them takes longer than a run."""
        self.kill()
        self.log, self._told = copy.deepcopy(self._empty), step

    def _step(self, name: str) -> None:
        self._told(f"fold, {name}")


class Servers:
    """A store, a database and a processor, reused by all runs; each run begins with empty ones."""

    def __init__(self, store: ObjectStore, dsn: str, topology: Topology = TOPOLOGY) -> None:
        self.store, self.fold = store, _Fold(topology)
        self.pending = PostgresPending(dsn, "worker", "sheets")
        self.database = connect(dsn, "sink")
        self.lander = Lander(topology, self.database)
        self.contract = contracts.load(pipelines.find()[topology.name].contracts)[QUEUE]

    def close(self) -> None:
        """Close the connections."""
        self.pending.close()
        self.database.close()

    def empty(self) -> None:
        """Delete all content."""
        self.database.execute(
            "DELETE FROM onefold.pending; DELETE FROM onefold.done; DELETE FROM onefold.ledger;"
            " DELETE FROM sheets.entries; DELETE FROM sheets.sheets; DELETE FROM sheets.refusals"
        )
        for name in list(self.store.ids()):
            self.store.delete(name)
        for mark in list(self.store.marks()):
            self.store.unmark(mark.name)

    def rows(self, question: str) -> list[tuple[Any, ...]]:
        """Query the database."""
        return self.database.execute(question.encode()).fetchall()


class _Watched:
    """A store with a step before and after each call, and a clock that includes the client's sleep."""

    def __init__(self, run: "Upload", who: str) -> None:
        self._run, self._who = run, who

    def __getattr__(self, name: str) -> Callable[..., Any]:
        made = getattr(self._run.servers.store, name)

        def call(*arguments: Any) -> Any:
            self._run.step(f"{self._who}, before {name}")
            answer = made(*arguments)
            if name == "mark":
                self._run.marked_at_s = self._run.slept_s
            self._run.step(f"{self._who}, after {name}")
            return answer

        return call

    def marks(self) -> Iterator[Mark]:
        self._run.step(f"{self._who}, before marks")
        older = timedelta(seconds=self._run.slept_s - self._run.marked_at_s)
        return iter([Mark(name, since - older) for name, since in self._run.servers.store.marks()])


class Upload:
    """One upload. `steps`: names of the steps taken. `told`: whether a call asked to upload again."""

    def __init__(
        self, servers: Servers, faults: Faults = Faults(), parts: Parts = Parts(), patience_s: float = NO_PATIENCE
    ) -> None:
        self.servers, self.fold, self.steps, self.told = servers, servers.fold, list[str](), False
        self.slept_s = self.marked_at_s = 0.0
        self._faults, self._parts, self._patience_s = faults, parts, patience_s
        self._asked, self._gone, self._made = list[str](), False, uploads.Upload("", "", 0, 0, "")
        self._found, self._delivered, self._now = -1, 0, 0.0
        self._queue = SimulatedQueue(lambda: self._now, Random(0), self._passes, _TIMEOUT_S)
        servers.empty()
        self.fold.begin(self.step)

    def run(self, order: Iterable[str]) -> End:
        """Run these parts in this order, then all remaining work, until a garbage collection finds nothing.

        Raises AssertionError if the final state is wrong.
        """
        self._do(order)
        self._patience_s = NO_PATIENCE
        self._do((*OTHERS, "sweep") * 2)
        return self._end()

    def step(self, name: str) -> None:
        """Step at which an actor may crash or sleep."""
        self.steps.append(name)
        number = len(self.steps)
        if number in self._faults.sleeps:
            assert name.startswith("client"), "only clients sleep"
            self.slept_s += self._faults.sleep_s
            self._do(("sweep", *OTHERS))
        if number in self._faults.deadly:
            raise Crash(name)

    def _do(self, order: Iterable[str]) -> None:
        others = {"sweep": self._sweep, "fold": self.fold.run, "land": self._land, "work": self._work}
        for part in order:
            if part in CALLS:
                self._client(part)
            else:
                _again_and_again(others[part])

    # --- the client

    def _client(self, call: str) -> None:
        if self._gone:
            return
        self._asked.append(call)
        try:
            self._call(call)
        except Crash:
            self._gone = not self._faults.comes_back
            if not self._gone:
                _again_and_again(self._begin_again)

    def _begin_again(self) -> None:
        for call in dict.fromkeys(self._asked):
            self._call(call)

    def _call(self, call: str) -> None:
        store: Any = _Watched(self, "client")
        if call == "create":
            self._made = self._parts.create(store, "sheet-1", "request-1", BytesIO(CONTENT))
        elif call == "upload":
            self._parts.upload(store, self._made, BytesIO(CONTENT))
        else:
            try:
                self._parts.complete(store, self._produce("client"), self._made)
            except UserError:
                self.told = True

    def _produce(self, who: str) -> Produce:
        def produce(messages: Iterable[Message]) -> None:
            # Atomic, as in one transaction.
            given = list(messages)
            self.step(f"{who}, before produce")
            for topic, key, value in given:
                self.fold.log.append(topic, key, value)
            self.step(f"{who}, after produce")

        return produce

    # --- the others

    def _sweep(self) -> None:
        store: Any = _Watched(self, "sweep")
        self._found = self._parts.sweep(store, self._produce("sweep"), self._patience_s)

    def _land(self) -> None:
        self.servers.lander.land(self.fold.log, self.step)

    def _work(self) -> None:
        """Run a newly started worker until no job is left."""
        records = self.fold.records(QUEUE)  # all records are of one object, so of one partition, in order
        for _, value, _ in records[self._delivered :]:
            self._queue.put(topics.decode(QUEUE, self.servers.contract, QUEUE, value))
        self._delivered = len(records)
        store: Any = _Watched(self, "worker")
        worker = worker_of(
            self._queue,
            self.servers.pending,
            self._parts.effect(store),
            limits=Limits(timeout_s=_TIMEOUT_S, first_s=0.5, longest_s=1.0),
            clock=lambda: self._now,
            step=lambda name: self.step(f"worker, {name}"),
        )
        for _ in range(_ROUNDS_MAX):
            if not self._queue.left:
                return
            worker.work(2 * _TIMEOUT_S)
        raise AssertionError(f"{self._queue.left} jobs are left")

    def _passes(self, seconds: float) -> None:
        self._now += seconds
        self.servers.database.execute(
            "UPDATE onefold.pending SET modified = modified - make_interval(secs => %s)", (seconds,)
        )

    # --- the end

    def _end(self) -> End:
        """Check the final state by the model, which processes the uploads in the order of the log."""
        world, rows, store = World(), self.servers.rows, self.servers.store
        for _, value, _ in self.fold.records(uploads.UPLOADS):
            world = world.folded(value or b"")
        entries = rows("SELECT sheet_id, entry, kind, object_id FROM sheets.entries")
        objects = tuple(store.get(one) for one in store.ids())
        assert objects == (CONTENT,) * len(entries), "an object is there when an entry names it, and else not"
        marks = [mark.name for mark in store.marks()]
        assert marks in ([], [] if entries else [NAME]), "no mark is on what an entry names"
        assert self._found == 0, "the last sweep finds nothing"

        assert entries == [("sheet-1", 1, "import", NAME)] * world.entries, "one entry, or none"
        assert len(self.fold.read("sheets.entries")) == world.entries, "in the log as in the table"
        refused = rows("SELECT sheet_id, object_id, reason FROM sheets.refusals")
        assert refused == [("sheet-1", NAME, "discarded")] * min(1, world.refusals), "who comes too late is refused"
        told = bool(refused) or self.told
        assert not (entries and told), "entered, or refused"

        jobs = [(job["entry"], job["keep"]) for job in self.fold.read(QUEUE)]
        assert jobs == [(job.number, job.keep) for job in world.jobs], "the jobs are those of the model"
        assert rows("SELECT count(*) FROM onefold.pending") == [(0,)], "nothing is pending"
        done = rows("SELECT entry, (result ->> 'kept')::boolean FROM onefold.done ORDER BY entry")
        assert done == jobs, "every job is done, and says what was decided"
        return End(len(entries), told, objects, len(marks))


def _again_and_again(part: Callable[[], object]) -> None:
    """Restart a part after each crash."""
    for _ in range(_ROUNDS_MAX):
        try:
            part()
        except Crash:
            continue
        return
    raise AssertionError("it dies again and again")


def orders() -> dict[str, Sequence[str]]:
    """Orders of an upload's parts: a garbage collection after each call, or a repeated call with a garbage collection in
    between. Other actors run at once, with a late worker, or all late."""
    found = dict[str, Sequence[str]]()
    paces: dict[str, tuple[str, ...]] = {"at once": OTHERS, "worker late": OTHERS[:-1], "all late": ()}
    for pace, others in paces.items():
        for at, call in enumerate(CALLS, 1):
            parts = (*CALLS[:at], "sweep", *CALLS[at:])
            twice = (*CALLS[:at], "sweep", call, *CALLS[at:])
            for words, order in ((f"sweep after {call}", parts), (f"{call} twice", twice)):
                found[f"{words}, {pace}"] = [part for one in order for part in (one, *others)]
    return found
