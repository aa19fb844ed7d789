"""Between the changelog and the decision log: what a progress says of where the log's readers stand."""

from collections.abc import Callable
from dataclasses import replace

from onefold.processor.core.abc import Identity, Inputs, Transactions
from onefold.processor.core.decision import Next, Position, Standing
from onefold.processor.core.decision_log import DecisionLog
from onefold.processor.core.errors import Corrupted
from onefold.processor.core.topology import Topology
from onefold.processor.runtime.changelog import DecidedIn, Progress
from onefold.processor.runtime.transact import Transact


def check_log(progress: Progress, log: Identity) -> None:
    """Raises `Corrupted` when the log is not the one in which this was decided: the pipeline was started over, and what is in
    memory is of the time before. It could go on from the same version and offsets there, and would be believed.
    """
    if progress.decided_in is not None and progress.decided_in.log_id != log.topic_id:
        raise Corrupted("the decision log was made again: what was decided before is dropped")


def standing_of(progress: Progress) -> Standing:
    """Where a reader goes on that has what the changelog has. Raises `Corrupted` when no log has the task."""
    if progress.decided_in is None:
        raise Corrupted("the changelog says that the task is decided by Kafka transactions")
    log_id, offset, opened = progress.decided_in
    inputs = {topic: Next(progress.topic_ids[topic], at) for topic, at in progress.offsets_next.items()}
    if opened:
        return Standing(log_id, offset, Position(progress.transactions, inputs))
    # The opening names the version that the changelog has now: whatever was appended to the log before has a lower one.
    return Standing(log_id, offset, Position(progress.transactions - 1, inputs, closed=True))


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
