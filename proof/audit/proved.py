"""What an auditor goes on from, and what it leaves to whoever judges next.

A verdict is judged of the state that is there when everything has been read, whatever the order in which inputs and outputs came
to it. So the state of an auditor that is somewhere in the middle, with outputs read whose inputs are not taken yet, is as good a
beginning as that of a verdict: it names for each topic what comes next. What a judge sees when it reads a record, and not in the
end, the auditor has found itself; it leaves nothing after a finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from onefold.proof.checkpoints import Checkpoint, Checkpoints, digest_of, environment_of, fingerprint, now
from onefold.proof.contracts import contracts
from onefold.proof.expect import Oracle, Workload
from onefold.proof.order import Order
from onefold.proof.outputs import Outputs
from onefold.proof.record import Source
from onefold.proof.registry import Registry
from onefold.proof.replays import Replays

#: (topic, partition)
Place = tuple[str, int]


class Proved:
    """The checkpoints of one domain, as an auditor has them.

    Args:
        kept: None: none are there, and none are left.
        judge: the auditor's part that a state is used by.
        topic_ids: of all topics that are read.
        receipts: the dead letters that had been put back.
    """

    def __init__(
        self,
        kept: Checkpoints | None,
        work: Workload,
        registry: Registry | None,
        judge: object,
        topic_ids: dict[str, str],
        receipts: Set[Source],
    ) -> None:
        self._kept = kept
        self._work = work
        self._environment = environment_of(work, contracts(work.name)) | {"judge": judge}
        if registry is not None:
            self._environment["registry"] = registry
        self._judge = fingerprint(work, with_registry=registry is not None), topic_ids
        self._receipts = receipts
        # Of these a verdict knows more than an auditor, or an auditor gives some of it away.
        others = work.fed or work.queues or work.made
        #: Whether it leaves any.
        self.leaves = kept is not None and not others

    def find(self, starts: Mapping[Place, int], ends: Mapping[Place, int]) -> tuple[Checkpoint, Any] | None:
        """The newest that holds for a log, and its state."""
        return self._kept.holding(self._judge, self._receipts, starts, ends, self._environment) if self._kept else None

    def leave(
        self,
        positions: dict[Place, int],
        records: int,
        oracle: Oracle,
        outputs: Outputs,
        order: Order | None,
        replays: Replays,
        progresses: Mapping[int, Mapping[str, Any]],
    ) -> str:
        """Keep a state. Returns why it could not be kept, or "".

        Args:
            positions: what is read next of each place; of an input what the oracle takes next.
            records: how many were read, from the beginning of the log.
            progresses: per task the last one that was read.
        """
        assert self._kept is not None, "asked only where it leaves some"
        checkpoint = Checkpoint(*self._judge, positions, digest_of(self._receipts), records, now())
        heard, outputs.heard = outputs.heard, None  # whoever goes on listens for itself
        take = order.take if order else None
        if order:
            order.take = oracle.feed
        state = {
            "_oracle": oracle,
            "_outputs": outputs,
            "_order": order,
            "_replays": replays,
            "_progresses": progresses,
            "_read": records,
        }
        try:
            return self._kept.keep(checkpoint, state, self._environment)
        finally:
            outputs.heard = heard
            if order and take:
                order.take = take
