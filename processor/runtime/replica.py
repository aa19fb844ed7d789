"""One task, hot-hot: compute, propose, and take over what was decided, whoever proposed it.

Every replica does this side by side with the others. None leads: what is true is what the decision log says (`core.decision`).
The states restart from the changelog, which a publisher keeps behind the log (`publisher`), and from the decisions after it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import chain
from typing import Any, Protocol

import msgspec

from onefold.error_codes import Code
from onefold.processor.core.abc import Codec, Identity, Inputs, Transactions
from onefold.processor.core.decision import Decision, Kind, Proposal
from onefold.processor.core.decision_log import Body, DecisionLog, Note, Proposals
from onefold.processor.core.errors import Refused, TooMuch
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Counts, Record
from onefold.processor.runtime.batch_limit import BatchLimit, Quarantine
from onefold.processor.runtime.changelog import Progress, behind, changes_of
from onefold.processor.runtime.compute import Compute, Prepared
from onefold.processor.runtime.every import Every
from onefold.processor.runtime.figures import Done
from onefold.processor.runtime.keeping import Keeping, Standing
from onefold.processor.runtime.sizes import Sizes
from onefold.processor.runtime.standing import check_log, proposal_of, read_on, restored
from onefold.processor.runtime.store import DiskStore, Store
from onefold.processor.runtime.takeover import ProposalBackoff, TaskShares
from onefold.processor.runtime.task import CHECK_EVERY_S
from onefold.processor.runtime.undecided import WAIT_S, Pending, Undecided

# A proposal whose outcome is not seen for so long is computed again. Both may be in the log: the rule takes one of them.
PENDING_S = 5.0
# Of a proposal: a record of the log must hold it, and nobody sees anything of it before it is computed.
RECORDS_MAX = 5_000


class Publishes(Protocol):
    """What publishes for a replica when it has to, in a thread of its own.

    Attributes:
        failure: what ended it for good.
    """

    failure: BaseException | None

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End after the transaction in hand, and wait for that."""


class Replica:
    """Folds one partition beside other replicas (see `loop.Runs`). Not safe to share between threads.

    Args:
        name: of the replica; unique among those of the pipeline, the same after a restart.
        inputs: the task's partition of every input.
        log: the task's partition of the decision log.
        changelog: read for the states; opened only to take the task from whoever decides it by Kafka transactions.
        step, beat, compute_lock, check_every_s, keeping, clock: as of `Task`.
        shares: which replica decides which task; all replicas of a process have one.
        publishing: makes what publishes for this replica. None: nothing does.
    """

    def __init__(
        self,
        topology: Topology,
        name: str,
        inputs: Inputs,
        log: DecisionLog,
        changelog: Transactions,
        codec: Codec,
        proposals: Proposals,
        step: Callable[[str], None] = lambda name: None,
        beat: Callable[[], None] = lambda: None,
        compute_lock: AbstractContextManager[Any] | None = None,
        check_every_s: float = CHECK_EVERY_S,
        keeping: Keeping | None = None,
        shares: TaskShares | None = None,
        publishing: Callable[["Replica"], Publishes] | None = None,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.topology = topology
        self.name = name
        self.store: Store | DiskStore = Store()
        self.progress = Progress()
        self.won = self.decided = 0
        self.done = Done()
        #: The version up to which others can read what was decided in the plain topics, as far as it has heard.
        self.published = 0
        self.unpublished_since: float | None = None  # when the version after it was decided
        self._inputs, self._log, self._changelog = inputs, log, changelog
        self._codec, self._proposals = codec, proposals
        self._compute = Compute(topology, codec, inputs)
        self._step = step
        self._beat = beat
        self._keeping = keeping or Keeping(topology, codec, inputs.partition, beat=beat)
        self._compute_lock = compute_lock or nullcontext()
        self._clock, self._check = clock, Every(check_every_s, clock)
        self._nothing = Body(Counts(), [], proposals.encode_writes([]))
        self._limit = BatchLimit(self._note_quarantine, RECORDS_MAX)
        self._undecided = Undecided(inputs)
        self._asking = False  # whether the cluster takes anything: it has refused the last proposal
        self._ends: Mapping[str, Identity] | None = None
        self._pending: Pending | None = None
        self._shares = shares or TaskShares(name, clock)
        self._backoff = ProposalBackoff(inputs.partition, self._shares, clock)
        self._publishing = publishing(self) if publishing else None

    @property
    def partition(self) -> int:
        """The task."""
        return self._inputs.partition

    @property
    def kept(self) -> Standing:
        """Where its states are, and why."""
        return self._keeping.standing

    @property
    def score(self) -> tuple[int, int]:
        """Of the decisions since it was opened, how many it has won, and how many there were."""
        return self.won, self.decided

    @property
    def lag(self) -> int | None:
        """How many offsets of its inputs are not decided, by where they ended when it looked last."""
        return behind(self.progress, self._ends)

    @property
    def quarantine(self) -> Quarantine:
        """How careful it is."""
        return self._limit.quarantine

    def open(self) -> None:
        """Restore from the changelog, read all later decisions, and begin to publish when that is necessary.

        Raises:
            Refused: the inputs or the decision log are not those that were read before, or lost what comes next.
            Corrupted: decisions were deleted while this restored; they are in the changelog by now.
        """
        found, self._history = restored(
            self.topology, self._inputs, self._log, self._changelog, self._keeping, self._step
        )
        self.store, self.progress, self.published = found.store, found.progress, found.progress.transactions
        self._catch_up()
        if self.published < self.progress.transactions and self.unpublished_since is None:
            self.unpublished_since = self._clock()
        self._sizes = Sizes(self._changelog.record_bytes_max)
        self._inputs.seek(self.progress.offsets_next)
        self._limit.open(self._inputs.identities())
        if self._publishing is not None:
            self._publishing.start()

    def turn(self) -> int:
        """One cycle. Returns how many decisions were taken over. Raises what ended the publishing for good."""
        if self._publishing is not None and self._publishing.failure is not None:
            raise self._publishing.failure
        decided = self._adopt(self._read_log())
        if self._pending is not None:
            if self._clock() - self._pending.since > PENDING_S:
                self._pending = None
            return decided
        if self.progress.decided_in is not None and not self.progress.decided_in.opened:
            self._propose_opening()
            return decided
        if self._asking:
            return decided
        self._undecided.read(self.progress.offsets_next, self._limit.records_max)
        self._same_logs()
        ends = self._undecided.markers_after(self.progress.offsets_next)
        if (self._undecided.records or ends) and not self._backoff.waits():
            if ends:
                self._pass_markers(ends)
            else:
                self._propose()
        self._limit.relax(self.progress.offsets_next)
        return decided

    def caught_up(self) -> bool:
        """Whether all is decided that was there when it was opened."""
        return self._limit.caught_up(self.progress.offsets_next)

    def close(self) -> None:
        """Leave in good order; the next life need not be careful."""
        self._stop_publishing()
        try:
            self._limit.close()
        finally:
            self.abandon()

    def retreat(self) -> None:
        """Leave after a known trouble."""
        self.close()

    def abandon(self) -> None:
        """Leave after an error. What was proposed may still be decided."""
        self._stop_publishing()
        self._keeping.close()
        self._inputs.close()
        self._log.close()
        self._changelog.close()

    def _stop_publishing(self) -> None:
        if self._publishing is not None:
            self._publishing.stop()

    def _catch_up(self) -> None:
        """All that is in the log already. A note of our own among it tells how the last life of this replica ended."""
        end = self._log.identity().end
        while self._history.offset_next < end:
            self._adopt(read_on(self._log))
            self._beat()

    # --- what was decided

    def _read_log(self) -> Sequence[tuple[int, bytes | None]]:
        try:
            # For our own proposal, or for somebody else's while we leave it to them.
            waits = self._pending is not None or self._asking
            return self._log.read(WAIT_S if waits else self._backoff.left_s)
        except TooMuch as reason:
            # The cluster's answer to an append; there is one at a time.
            pending, self._pending = self._pending, None
            self._too_much(pending.records if pending is not None else (), str(reason))
            raise

    def _too_much(self, records: Sequence[Record], reason: str) -> None:
        """Propose less the next time, and only when the cluster takes a note: a record is not to blame for a cluster that is
        away.
        """
        if records:
            self._limit.too_large(records, reason)
        self._asking = True
        self._note_quarantine(self.quarantine)

    def _adopt(self, found: Sequence[tuple[int, bytes | None]]) -> int:
        decisions = 0
        for offset, value in found:
            ours = self._pending if self._pending is not None and self._pending.value == value else None
            record = self._proposals.decode(value) if ours is None else ours.proposal
            if isinstance(record, Note):
                self._hear(record)
                record = None
            decision = self._history.take(offset, record)
            if decision is not None:
                self._take(decision, ours)
                decisions += 1
            elif ours is not None:
                self._pending = None  # read back, and it lost
        if decisions:
            # Once: who was away takes over very many, and has read as many records as a proposal may have.
            self._undecided.drop(self.progress.offsets_next)
        return decisions

    def _take(self, decision: Decision, ours: Pending | None) -> None:
        """The winner's bytes, never our own: of a handler that has dice or a clock nobody else can compute them again."""
        proposal = decision.proposal
        body: Body = proposal.body
        self._pending = None
        prepared = None if ours is None else ours.prepared
        self.progress = self.progress.after(decision)
        if proposal.kind is Kind.CLOSE:
            raise Refused(
                Code.REPLICAS_CHANGED,
                f"{self.topology.name} is decided by Kafka transactions again: {proposal.proposer} has taken task "
                f"{self.partition} back. Start this one again to have replicas",
            )
        if prepared is not None:
            changes, needed = prepared.changes, self._keeping.needed(prepared.states)
        else:
            states = dict(body.states)
            changes = changes_of(states, self.topology, self._codec)
            needed = [("", self.partition, *state, None) for state in self._keeping.needed([*states.items()])]
        self.store = self._keeping.apply(self.store, changes, needed, None, self.progress, self.quarantine)
        self._shares.decided(self.partition, proposal.proposer)
        if proposal.kind is Kind.STEP:
            self._count(ours)
        self._step("after_apply")

    def _count(self, won: Pending | None) -> None:
        """A decision more; `won` is what this replica had proposed, if it is that."""
        now = self._clock()
        self.decided += 1
        self._backoff.decided(ours=won is not None)
        if won is not None:
            self.won += 1
            if won.records:
                self._limit.committed(len(won.records), now - won.since, self.progress.offsets_next)
                self.done.took_s.append(now - won.since)
        if self.unpublished_since is None and self.published < self.progress.transactions:
            self.unpublished_since = now

    def _hear(self, note: Note) -> None:
        if note.task != self.partition or note.log_id not in ("", self.progress.log_id):
            return
        if note.proposer == self.name:
            self._asking = False
        published, quarantine = note.body.get("published"), note.body.get("quarantine")
        if isinstance(published, int) and published > self.published:
            self.published = published
            self.unpublished_since = self._clock() if published < self.progress.transactions else None
        if quarantine is not None and note.proposer == self.name:
            # Another program may have written an invalid note. An error would come again after each restart.
            with suppress(msgspec.ValidationError):
                self._limit.quarantine = msgspec.convert(quarantine, Quarantine)

    # --- what to propose

    def _propose(self) -> None:
        records = self._undecided.records[: self._limit.records_max]
        topic_ids = self._inputs.ask_topic_ids()
        rejected = self._limit.rejected(records)
        alone = self._limit.isolating and not rejected
        with self._compute_lock:
            if alone:
                self._limit.attempt(records[0])
            prepared = self._compute.prepare(self.store, self.progress, records, rejected)
            self._append(records, prepared, topic_ids)
            while alone and self._pending is not None and self._clock() - self._pending.since < PENDING_S:
                self._adopt(self._read_log())

    def _append(
        self, records: Sequence[Record], prepared: Prepared, topic_ids: Callable[[], Mapping[str, str]]
    ) -> None:
        states = [(key or b"", value) for _, _, key, value, _ in prepared.states]
        counts = prepared.progress.counts.since(self.progress.counts)
        body = Body(counts, states, self._proposals.encode_writes(prepared.writes), prepared.progress.ticked_ms)
        proposal = self._proposal(Kind.STEP, prepared.progress.offsets_next, body)
        self._step("before_append")
        self.progress.same_topics(topic_ids())
        try:
            self._send(proposal, records, prepared)
        except TooMuch as reason:
            self._too_much(records, str(reason))
            raise
        self._step("after_append")

    def _send(self, proposal: Proposal, records: Sequence[Record], prepared: Prepared | None) -> None:
        value = self._proposals.encode(proposal)
        if prepared is not None:
            self._sizes.check(len(value), chain(prepared.writes, prepared.states))
        self._log.append(value)
        self._pending = Pending(value, proposal, records, prepared, self._clock())

    def _propose_opening(self) -> None:
        self._send(self._proposal(Kind.OPEN, self.progress.offsets_next, self._nothing), [], None)

    def _pass_markers(self, ends: Mapping[str, int]) -> None:
        """Nothing to read: markers at the end of an input are read too, so that a drained input has no lag."""
        self.progress.same_topics(self._inputs.ask_topic_ids()())
        self._send(self._proposal(Kind.STEP, ends, self._nothing), [], None)

    def _proposal(self, kind: Kind, ends: Mapping[str, int], body: Body) -> Proposal:
        return proposal_of(self.progress, self.partition, self.name, kind, ends, body)

    # --- care

    def _note_quarantine(self, quarantine: Quarantine) -> None:
        self._note({"quarantine": msgspec.to_builtins(quarantine)})

    def _note(self, body: Mapping[str, Any]) -> None:
        self._log.append(self._proposals.encode_note(Note(self.partition, self.name, body, self.progress.log_id)))

    def _same_logs(self) -> None:
        if self._check.is_due():
            self._ends = self._inputs.identities()
            self.progress.checked(self._ends)
            check_log(self.progress, self._log.identity())
