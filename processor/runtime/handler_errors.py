"""What a handler raises that is no `Rejected` is a bug in it, and costs the record that it was raised at one dead letter.

The fold knows nothing of bugs: it ends, and nothing has been done. Then the same records are folded one at a time, by the
same fold, to find all that it ends at; and once more together, without those. So only a batch that has such a record takes
longer, and a handler that fails the same way whenever it sees the same record loses nobody else's.
"""

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog

from onefold.error_codes import Code
from onefold.processor.core.errors import ProcessorError, Refused
from onefold.processor.core.fold import States, fold
from onefold.processor.core.parking import Parking, Ticket
from onefold.processor.core.topology import EmitChange, Topology
from onefold.processor.core.values import Change, DeadLetter, Outputs, Record, Transaction

log = structlog.get_logger()

#: No record's fault, as far as can be told: what is known, memory, and what the world outside answered to a handler that
#: should not have asked it. It ends the task; whether it is one record's after all, `batch_limit` finds out.
NO_FAULT = (ProcessorError, MemoryError, OSError)

# A handler that fails at so many records one after the other is wrong, and not they: it would empty a topic into its dead
# letters as fast as it folds. Or at every record of a batch of so many: of a trickle each batch has only a few.
IN_A_ROW_MAX, ALL_OF_MIN = 1_000, 100

# Lines of these folders are the engine's, and no handler's.
_ENGINE = tuple(f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("core", "io", "runtime", "testing"))


class Bugs:
    """Those of one task's pipeline, each told once: thousands of records may come upon the same one."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def at_fault(
        self,
        topology: Topology,
        states: States,
        records: Sequence[Record],
        decode: Callable[[Record], Any],
        partition_of: Callable[[str], int],
        encode: Callable[[Transaction], Any],
        ticked_ms: int = 0,
        parking: Parking | None = None,
    ) -> dict[Record, str]:
        """The records at which the pipeline raises what it should not, and why they are set aside.

        A key's change is emitted after each of its records: at fault is the one after which that fails.

        Raises:
            Refused: so many in a row that it is the pipeline that is wrong. None of them is set aside.
        """
        ahead = _Ahead(states)
        if topology.emit_change is not None:
            topology = replace(topology, emit_change=partial(_emit_all, topology.emit_change, states))
        faults: dict[Record, str] = {}
        in_a_row = waited = 0
        for record in records:
            try:
                transaction = fold(topology, ahead, (record,), decode, partition_of, ticked_ms, parking)
                encode(transaction)
            except NO_FAULT:
                raise
            except Exception as error:  # noqa: BLE001 - counted, and the cause of what is raised below
                faults[record] = reason = self._tell(topology, record, error)
                in_a_row += 1
                last = record, reason, error
            else:
                ahead.changes |= transaction.changes
                ticked_ms = transaction.ticked_ms
                if any(_waits(letter) for letter in transaction.dead_letters):
                    waited += 1  # the handler has not seen it
                else:
                    in_a_row = 0
            tried = len(records) - waited
            if in_a_row == IN_A_ROW_MAX or (record is records[-1] and in_a_row == tried >= ALL_OF_MIN):
                failed, reason, cause = last
                raise Refused(
                    Code.HANDLER_FAILS,
                    f"{topology.name} fails at {in_a_row} records in a row, the last of them {failed.source.decode()}: "
                    f"{reason}. None of them went to the dead-letter topic. Fix the handler, and start the pipeline again",
                ) from cause
        return faults

    def _tell(self, topology: Topology, record: Record, error: Exception) -> str:
        """The reason that the dead letter gives. The first one of its kind is also in the log, with a traceback."""
        part = _own_part(error)
        place = _line(part)
        kind = type(error).__name__
        what = f"{kind}: {error}" if str(error) else kind
        reason = f"the handler raised {what} ({place})" if place else f"processing the record raised {what}"
        if (kind, place) not in self._told:
            self._told.add((kind, place))
            # Formatted here: a renderer for people would look for every local variable of every line, for seconds.
            trace = "".join(traceback.format_exception(type(error), error, part or error.__traceback__)).rstrip()
            source = record.source.decode()
            log.error("a handler has a bug", domain=topology.name, record=source, reason=reason, stack=trace)
        return reason


def _waits(letter: DeadLetter) -> bool:
    """Whether the key of its record was parked before."""
    ticket = Ticket.decode(letter.parked)
    return ticket is not None and not ticket.refused


def _emit_all(emit_change: EmitChange, states: States, key: str, _: Any, after: Any) -> Outputs:
    """From how the key was before the transaction, and not before the one record."""
    return emit_change(key, states.get(key), after)


class _Ahead:
    """The states as of the last committed transaction, with what the records before have changed."""

    def __init__(self, states: States) -> None:
        self._states = states
        self.changes: dict[str, Change] = {}

    def get(self, key: str) -> Any:
        """The state of `key`, or None."""
        changed = self.changes.get(key)
        return self._states.get(key) if changed is None else changed[0]

    def items(self) -> Iterator[tuple[str, Any]]:
        """Every key that has a state, and its state."""
        yield from ((key, state) for key, state in self._states.items() if key not in self.changes)
        yield from ((key, state) for key, (state, _) in self.changes.items() if state is not None)


def _own_part(error: Exception) -> TracebackType | None:
    """The traceback from the first line that is not the engine's; None when all of them are."""
    part = error.__traceback__
    while part is not None and part.tb_frame.f_code.co_filename.startswith(_ENGINE):
        part = part.tb_next
    return part


def _line(part: TracebackType | None) -> str:
    """`file:line` of where it was in the pipeline's own file, also when a library raised it."""
    walked = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(part)]
    lines = [line for file, line in walked if file == walked[0][0]]
    return f"{Path(walked[0][0]).name}:{lines[-1]}" if walked else ""
