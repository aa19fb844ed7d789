"""Between the changelog and the decision log: what a progress says of where the log's readers stand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from onefold.error_codes import Code
from onefold.processor.core.abc import Identity, Inputs, Transactions
from onefold.processor.core.decision import History, Kind, Next, Position, Proposal, Range, Standing, begin
from onefold.processor.core.decision_log import Body, DecisionLog
from onefold.processor.core.errors import Corrupted, Refused, Retriable
from onefold.processor.core.topology import Topology
from onefold.processor.runtime.changelog import DecidedIn, Progress
from onefold.processor.runtime.keeping import Found, Keeping
from onefold.processor.runtime.transact import Transact
from onefold.processor.runtime.undecided import WAIT_S

# Reads without a record, of a log that holds more: 20 s. A leader is elected sooner.
EMPTY_READS_MAX = 400


def check_log(progress: Progress, log: Identity) -> None:
    """Raises `Corrupted` when the log is not the one in which this was decided: the pipeline was started over, and what is in
    memory is of the time before. It could go on from the same version and offsets there, and would be believed.
    """
    if progress.decided_in is not None and progress.decided_in.log_id != log.topic_id:
        raise Corrupted(Code.DECISIONS_LOST, "the decision log was made again: what was decided before is dropped")


def standing_of(progress: Progress) -> Standing:
    """Where a reader goes on that has what the changelog has. Raises `Corrupted` when no log has the task."""
    if progress.decided_in is None:
        raise Corrupted(Code.REPLICAS_CHANGED, "the changelog says that the task is decided by Kafka transactions")
    log_id, offset, opened = progress.decided_in
    inputs = {topic: Next(progress.topic_ids[topic], at) for topic, at in progress.offsets_next.items()}
    if opened:
        return Standing(log_id, offset, Position(progress.transactions, inputs))
    # The opening names the version that the changelog has now: whatever was appended to the log before has a lower one.
    return Standing(log_id, offset, Position(progress.transactions - 1, inputs, closed=True))


def proposal_of(progress: Progress, task: int, name: str, kind: Kind, ends: Mapping[str, int], body: Body) -> Proposal:
    """What a replica of that name proposes to come next: the inputs up to these offsets."""
    inputs = {
        topic: Range(progress.topic_ids[topic], offset, ends[topic]) for topic, offset in progress.offsets_next.items()
    }
    return Proposal(task, progress.transactions, inputs, name, body, kind, progress.log_id)


def restored(
    topology: Topology,
    inputs: Inputs,
    log: DecisionLog,
    changelog: Transactions,
    keeping: Keeping,
    step: Callable[[str], None],
) -> tuple[Found, History]:
    """What a replica begins with. The log gives next what comes after it.

    Raises:
        Refused: the inputs or the decision log are not those that were read before, or lost what comes next; or the topology
            reads more inputs, or fewer, than what was decided.
    """
    # First: what was deleted by now is in the changelog that is read next. What is deleted meanwhile is missed by the first
    # read, and this begins again.
    at = log.identity()
    found = keeping.restore(changelog, stable=True)
    identities = inputs.identities()
    if found.progress.decided_in is None:
        take_over(topology, inputs, log, changelog, step)
        found = keeping.restore(changelog)
        # Another replica may have been faster, and gone on since.
        identities = inputs.identities()
    _refuse_other_inputs(topology, found.progress)
    found = found._replace(progress=found.progress.checked(identities))
    step("after_restore")
    standing = begin(log.identity()._replace(start=at.start), standing_of(found.progress))
    log.seek(standing.offset)
    return found, History(inputs.partition, standing)


def _refuse_other_inputs(topology: Topology, progress: Progress) -> None:
    """A decision reads the very inputs of the one before it. What a replica proposed that reads others would win for itself and
    for others like it, and for no publisher, sink or judge.
    """
    decided_in, before, now = progress.decided_in, {*progress.offsets_next}, {*topology.reads}
    if decided_in is not None and decided_in.opened and before != now:
        changes = [f"{'with' if topic in now else 'without'} {topic}" for topic in sorted(before ^ now)]
        raise Refused(
            Code.INPUTS_CHANGED,
            f"{topology.name} reads other inputs now, {', '.join(changes)}, and decisions go on with those that they began with. "
            f"Stop all replicas, let one process run with ONEFOLD_REPLICAS=1, and start the replicas again",
        )


def read_on(log: DecisionLog) -> Sequence[tuple[int, bytes | None]]:
    """Of what the log holds, what comes next. Raises `Retriable` when it gives nothing for too long."""
    for _ in range(EMPTY_READS_MAX):
        if found := log.read(WAIT_S):
            return found
    raise Retriable(
        Code.TOPIC_UNREADABLE,
        "the decision log does not give what it holds: its partition has no leader, or it is shorter than it was",
    )


def take_over(
    topology: Topology, inputs: Inputs, log: DecisionLog, changelog: Transactions, step: Callable[[str], None]
) -> None:
    """Take the task from Kafka transactions to the decision log: a fenced transaction of the changelog says so."""
    changelog.open()
    found = changelog.last_progress()
    before = Progress.decode(found) if found else Progress()
    if before.decided_in is not None:
        return  # another replica was faster; whoever publishes is fenced, and another one takes that up
    identities = inputs.identities()
    decisions = log.identity()
    decided_in = DecidedIn(decisions.topic_id, decisions.end, opened=False)
    after = replace(before.checked(identities), transactions=before.transactions + 1, decided_in=decided_in)
    transact = Transact(changelog, topology.changelog, inputs.partition, step)
    transact.write([], before, after)
    transact.commit()
