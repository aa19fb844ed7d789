"""Handler errors: an exception other than `Rejected` is a bug in the handler, and the record becomes a dead letter.

`fold` has no handling of bugs: an exception ends the call without an effect. Then `fold` processes the same records one at a
time to find all failing records, and once more together with these as dead letters. So only a batch with a failing record takes
longer. If the handler fails at the same records each time, no other record is lost.
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

#: Errors without a known record at fault: the processor's own errors, lack of memory, and errors of I/O that a handler should
#: not do. Such an error ends the task. If a record is the cause after all, `batch_limit` isolates the record.
NO_FAULT = (ProcessorError, MemoryError, OSError)

# If this number of records in a row fail, or all records of a batch of at least ALL_OF_MIN, the handler is wrong and not the
# records. Without the limit, a whole topic would go to the dead-letter topic. A smaller batch is no sufficient evidence.
IN_A_ROW_MAX, ALL_OF_MIN = 1_000, 100

# Source folders of the engine; a traceback line in any other folder is the pipeline's or a library's.
_ENGINE = tuple(f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("core", "io", "runtime", "testing"))


class Bugs:
    """The bugs of one task's pipeline. Each bug is logged once, because thousands of records may meet the same bug."""

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
        """Find the records at which the pipeline raises an exception, with the reason for each dead letter.

        `emit_change` runs after each record of a key here, so the record after which `emit_change` fails is at fault.

        Raises:
            Refused: too many records in a row fail, so the pipeline is wrong. None of these records becomes a dead letter.
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
            except Exception as error:  # noqa: BLE001 - counted, and the cause of the error below
                faults[record] = reason = self._tell(topology, record, error)
                in_a_row += 1
                last = record, reason, error
            else:
                ahead.changes |= transaction.changes
                ticked_ms = transaction.ticked_ms
                if any(_waits(letter) for letter in transaction.dead_letters):
                    waited += 1  # the handler was not called
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
        """The reason for the dead letter. The first error of a kind is also logged, with a traceback."""
        part = _own_part(error)
        place = _line(part)
        kind = type(error).__name__
        what = f"{kind}: {error}" if str(error) else kind
        reason = f"the handler raised {what} ({place})" if place else f"processing the record raised {what}"
        if (kind, place) not in self._told:
            self._told.add((kind, place))
            # Formatted here: the console renderer would print the local variables of every line, which takes seconds.
            trace = "".join(traceback.format_exception(type(error), error, part or error.__traceback__)).rstrip()
            source = record.source.decode()
            log.error("a handler has a bug", domain=topology.name, record=source, reason=reason, stack=trace)
        return reason


def _waits(letter: DeadLetter) -> bool:
    """Whether the key was parked before the letter's record."""
    ticket = Ticket.decode(letter.parked)
    return ticket is not None and not ticket.refused


def _emit_all(emit_change: EmitChange, states: States, key: str, _: Any, after: Any) -> Outputs:
    """Emit the change since the state before the transaction, not before the last record."""
    return emit_change(key, states.get(key), after)


class _Ahead:
    """The states as of the last committed transaction, with the changes by the records processed since."""

    def __init__(self, states: States) -> None:
        self._states = states
        self.changes: dict[str, Change] = {}

    def get(self, key: str) -> Any:
        """The state of `key`, or None."""
        changed = self.changes.get(key)
        return self._states.get(key) if changed is None else changed[0]

    def items(self) -> Iterator[tuple[str, Any]]:
        """All keys with a state, and the states."""
        yield from ((key, state) for key, state in self._states.items() if key not in self.changes)
        yield from ((key, state) for key, (state, _) in self.changes.items() if state is not None)


def _own_part(error: Exception) -> TracebackType | None:
    """The traceback from the first line outside the engine; None if all lines are the engine's."""
    part = error.__traceback__
    while part is not None and part.tb_frame.f_code.co_filename.startswith(_ENGINE):
        part = part.tb_next
    return part


def _line(part: TracebackType | None) -> str:
    """`file:line` of the last line in the pipeline's own file, even if a library raised the error."""
    walked = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(part)]
    lines = [line for file, line in walked if file == walked[0][0]]
    return f"{Path(walked[0][0]).name}:{lines[-1]}" if walked else ""
