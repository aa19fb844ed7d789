"""Large payloads of a sheet: three calls of a client, the sweep of what was never named, and the effect of what was decided.

A payload is an object first and an entry afterwards. In between it carries an expiry mark, and the log decides what becomes of
it: whichever of *complete* (the client) and *discard* (the sweep) comes first in `sheets.uploads` holds for ever, and a job on
`sheets.objects` says so.

Each call may be repeated, and may die anywhere. Nothing here asks a clock whether a client is still at work:

- The mark is set before the object is written, so an object that nothing names has one.
- The sweep deletes nothing. It asks the log to discard; of an object that an entry names, the answer is to keep it.
- A mark is removed from an object that an entry names, and from no other. So it stays when an object is discarded, for a client
  that is slow enough to write the object after that: the next sweep finds it again. That costs an empty object a discarded
  upload, as the log keeps a small state of each upload too.

What age has a say in is patience alone: a sweep that is too early costs a client an upload, under another request.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.jobs.apps.sheets.cells import BEGIN, LINE_BYTES_MAX, NotCanonical, parse_line
from onefold.jobs.protocols import Done, Job, Mark, Objects, Refuse
from onefold.operate import producing

UPLOADS = "sheets.uploads"
PAYLOADS = "payloads/"
# The contract asks for the sheet, which a name does not tell; a discarded object is of none.
NO_SHEET = "-"

_SHEET_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_READ_BYTES = 1 << 20

Message = tuple[str, bytes, bytes]  # topic, key, value
#: Writes messages to Kafka, which has them on return.
Produce = Callable[[Iterable[Message]], None]


@dataclass(frozen=True)
class Upload:
    """A payload that was checked: what the three calls are about. The same file and request give the same one again."""

    object_id: str
    sheet_id: str
    cells: int
    size: int
    digest: str


@dataclass(frozen=True)
class Marked:
    """An object that nothing has named so far, as a sweep finds it."""

    name: str
    since: datetime
    size: int


def import_payload(objects: Objects, produce: Produce, sheet_id: str, request: str, file: BinaryIO) -> Upload:
    """The three calls, one after the other; again after any error, and it is still one import.

    Args:
        request: the client's own name for this upload. What was discarded is uploaded again under another one.
        file: lines as in cells.py, by row and column, each cell once; `[row,col,null]` clears it. Is read twice.

    Raises UserError: the file is no payload, or store or Kafka do not take it.
    """
    upload_ = create(objects, sheet_id, request, file)
    upload(objects, upload_, file)
    complete(objects, produce, upload_)
    return upload_


def create(objects: Objects, sheet_id: str, request: str, file: BinaryIO) -> Upload:
    """Check the payload, give its object a name, and set the mark of that. Raises UserError as `import_payload` does."""
    if not _SHEET_ID.fullmatch(sheet_id):
        raise UserError(
            Code.ARGUMENT_WRONG, f"{sheet_id!r} is no sheet id", "Write 1 to 64 of A-Z, a-z, 0-9, _ . and -", USAGE
        )
    cells, size, digest = _checked(file)
    named = hashlib.sha256(f"{sheet_id}\n{request}\n{digest}".encode()).hexdigest()
    made = Upload(PAYLOADS + named, sheet_id, cells, size, digest)
    objects.mark(made.object_id)
    return made


def upload(objects: Objects, made: Upload, file: BinaryIO) -> None:
    """Write the object. Raises UserError: the file is not the one that was checked; then there is no object."""
    # Again, so that the patience of the sweep counts from here: a client may take its time between two calls.
    objects.mark(made.object_id)
    objects.put_stream(made.object_id, _same(file, made.digest))


def complete(objects: Objects, produce: Produce, made: Upload) -> None:
    """Ask the log for an entry with the object. Raises UserError: there is no such object."""
    if objects.size(made.object_id) is None:
        raise UserError(
            Code.OBJECT_MISSING,
            f"the object {made.object_id} is not there: it was not uploaded, or discarded since",
            "Upload it again under another request.",
        )
    produce([_message(made.object_id, made.sheet_id, "complete", made.cells, made.size)])


def unnamed(objects: Objects, older_than_s: float) -> Iterator[Marked]:
    """What has been marked for so long, by the clocks of store and caller.

    A mark without an object is of a client that has not come to that yet, or of an object that was discarded.
    """
    now = datetime.now(UTC)
    for mark in objects.marks():
        if mark.name.startswith(PAYLOADS) and _age_s(mark, now) >= older_than_s:
            size = objects.size(mark.name)
            if size is not None:
                yield Marked(mark.name, mark.since, size)


def sweep(objects: Objects, produce: Produce, older_than_s: float) -> int:
    """Ask the log to discard what `unnamed` gives; how much that was."""
    found = list(unnamed(objects, older_than_s))
    ask(produce, found)
    return len(found)


def ask(produce: Produce, found: Iterable[Marked]) -> None:
    """Ask the log to discard these. Of what an entry names it will say: keep it."""
    produce(_message(one.name, NO_SHEET, "discard", 0, one.size) for one in found)


class KeepOrDiscard:
    """The effect of `sheets.objects`: what was decided about an object.

    Decisions of an object need no order. The first one holds for ever, and every later one repeats it: a job that is late,
    done twice or overtaken says the same as the others.
    """

    ordered = False

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def before(self, job: Job, newest: Done | None) -> Sequence[Job] | None:
        """None that it would have to wait for."""
        return ()

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        """Remove the mark of what an entry names, and the object that none ever will; one call, so no checkpoint.

        Raises `Refuse`: it is no upload. Whoever may write to the topic could name a part of a snapshot otherwise.
        """
        if not job.log_id.startswith(PAYLOADS):
            raise Refuse(f"{job.log_id} is no upload: those begin with {PAYLOADS}")
        if job.value["keep"]:
            self._objects.unmark(job.log_id)
        else:
            # And not its mark: a client may be about to write the object once more.
            self._objects.delete(job.log_id)
        yield from ()

    def finish(self, job: Job, state: Any) -> Any:
        """The log knows already: it decided."""
        return {"kept": job.value["keep"]}

    def stands(self, job: Job, result: Any) -> bool:
        """A mark that came back is the sweep's affair; an object that did, of a slow client, is deleted again."""
        return bool(job.value["keep"]) or not job.log_id.startswith(PAYLOADS) or self._objects.size(job.log_id) is None

    def leftovers(self, *, inputs: bool) -> Sequence[str]:
        """With the inputs, how many uploads nothing names any more. Else the log decides of each what it has decided before."""
        if not inputs:
            return []
        number = sum(1 for _ in self._objects.ids(PAYLOADS))
        return [
            f"the claim to all {number:,} objects below {PAYLOADS} in the store: `onefold sheets sweep` finds them then"
        ]

    def start_over(self, *, inputs: bool) -> None:
        """With the inputs, mark what no entry names any more. It is not deleted here: a client may be about to complete it."""
        for name in self._objects.ids(PAYLOADS) if inputs else ():
            self._objects.mark(name)


def to_kafka(client: Mapping[str, str]) -> Produce:
    """Writes in transactions, so that a reader of committed records sees what was written as a whole."""

    def produce(messages: Iterable[Message]) -> None:
        for _ in producing.produce(messages, client):
            pass

    return produce


def _age_s(mark: Mark, now: datetime) -> float:
    return (now - mark.since).total_seconds()


def _message(object_id: str, sheet_id: str, action: str, cells: int, size: int) -> Message:
    value = {"object_id": object_id, "sheet_id": sheet_id, "action": action, "cells": cells, "size": size}
    return UPLOADS, object_id.encode(), json.dumps(value).encode()


def _checked(file: BinaryIO) -> tuple[int, int, str]:
    """How many cells, how many bytes, and the SHA-256 in hex."""
    cells, size, digest, last = 0, 0, hashlib.sha256(), BEGIN
    for line in _read(file, lambda: file.readline(LINE_BYTES_MAX)):
        cells += 1
        try:
            cell, _ = parse_line(line)
        except NotCanonical as error:
            raise _refused(cells, str(error)) from None
        if cell <= last:
            raise _refused(cells, "it is not behind the one before: cells are sorted by row and column, each once")
        size, last = size + len(line), cell
        digest.update(line)
    if not cells:
        raise UserError(
            Code.UPLOAD_WRONG, "the payload has no cell", 'Write a line for each, as [7,2,"n","12.5"].', USAGE
        )
    return cells, size, digest.hexdigest()


def _same(file: BinaryIO, digest: str) -> Iterator[bytes]:
    """What was checked, once more."""
    found = hashlib.sha256()
    for part in _read(file, lambda: file.read(_READ_BYTES)):
        found.update(part)
        yield part
    if found.hexdigest() != digest:
        raise UserError(
            Code.UPLOAD_WRONG,
            "the payload changed while it was uploaded",
            "Upload the file again when no program writes to it.",
        )


def _read(file: BinaryIO, some: Callable[[], bytes]) -> Iterator[bytes]:
    try:
        file.seek(0)
        while part := some():
            yield part
    except OSError as error:
        raise UserError(
            Code.FILE_UNUSABLE, f"the payload cannot be read: {error.strerror or error}", exit_code=USAGE
        ) from None


def _refused(number: int, why: str) -> UserError:
    return UserError(Code.UPLOAD_WRONG, f"line {number:,} of the payload is refused: {why}", exit_code=USAGE)
