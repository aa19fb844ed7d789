"""Large payloads of a sheet: the client's three calls, garbage collection of unreferenced uploads, and the effect of decisions.

A payload is first an object, and later an entry. In between, the object has an expiration marker, and the log decides about the
object. The first request in `sheets.uploads`, *complete* by the client or *discard* by garbage collection, decides permanently,
and a job on `sheets.objects` has the decision.

Each call may be repeated, and may stop at any point. No decision depends on a clock's view of the client's progress:

- The client sets the marker before writing the object, so every unreferenced object has a marker.
- Garbage collection deletes no object. Garbage collection sends a discard request to the log, and the log's job keeps an object
  referenced by an entry.
- A worker removes only markers of objects referenced by an entry. A discarded object keeps its marker, because a slow client
  may write the object after the deletion, and the next garbage collection then finds the object. Each discarded upload thus
  leaves an empty marker object in the store, and a small state in the log.

The age of a marker only decides how early garbage collection sends the discard request. If the request comes too early, the
client must upload again under a new request name.
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
# The schema requires a sheet id, but a discard request only has the object's name.
NO_SHEET = "-"

_SHEET_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_READ_BYTES = 1 << 20

Message = tuple[str, bytes, bytes]  # topic, key, value
#: Write messages to Kafka. On return, Kafka has acknowledged the messages.
Produce = Callable[[Iterable[Message]], None]


@dataclass(frozen=True)
class Upload:
    """A checked payload for the three calls. The same file and request always yield an equal upload."""

    object_id: str
    sheet_id: str
    cells: int
    size: int
    digest: str


@dataclass(frozen=True)
class Marked:
    """An object with an expiration marker, not referenced by an entry so far."""

    name: str
    since: datetime
    size: int


def import_payload(objects: Objects, produce: Produce, sheet_id: str, request: str, file: BinaryIO) -> Upload:
    """Run the three calls in order. Idempotent: run the function again after any error.

    Args:
        request: The client's own name for this upload. A discarded payload needs a new name.
        file: Lines as in cells.py, sorted by row and column, each cell once; `[row,col,null]` clears a cell. The file is read
            twice.

    Raises UserError: The file is no valid payload, or the store or Kafka fails.
    """
    upload_ = create(objects, sheet_id, request, file)
    upload(objects, upload_, file)
    complete(objects, produce, upload_)
    return upload_


def create(objects: Objects, sheet_id: str, request: str, file: BinaryIO) -> Upload:
    """Check the payload, name its object, and set the object's expiration marker. Raises UserError as in `import_payload`."""
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
    """Write the object. Raises UserError, and writes no object, if the file has changed since `create`."""
    # Renew the marker, because the client may have waited between the two calls.
    objects.mark(made.object_id)
    objects.put_stream(made.object_id, _same(file, made.digest))


def complete(objects: Objects, produce: Produce, made: Upload) -> None:
    """Request an entry with the object from the log. Raises UserError if the object does not exist."""
    if objects.size(made.object_id) is None:
        raise UserError(
            Code.OBJECT_MISSING,
            f"the object {made.object_id} is not there: it was not uploaded, or discarded since",
            "Upload it again under another request.",
        )
    produce([_message(made.object_id, made.sheet_id, "complete", made.cells, made.size)])


def unnamed(objects: Objects, older_than_s: float) -> Iterator[Marked]:
    """The objects whose marker is at least `older_than_s` seconds old, by the clocks of the store and the caller.

    A marker without an object belongs to a client before its upload, or to a discarded object.
    """
    now = datetime.now(UTC)
    for mark in objects.marks():
        if mark.name.startswith(PAYLOADS) and _age_s(mark, now) >= older_than_s:
            size = objects.size(mark.name)
            if size is not None:
                yield Marked(mark.name, mark.since, size)


def sweep(objects: Objects, produce: Produce, older_than_s: float) -> int:
    """Request the discard of all `unnamed` objects. Returns their number."""
    found = list(unnamed(objects, older_than_s))
    ask(produce, found)
    return len(found)


def ask(produce: Produce, found: Iterable[Marked]) -> None:
    """Request the discard of these objects. The log's job keeps an object referenced by an entry."""
    produce(_message(one.name, NO_SHEET, "discard", 0, one.size) for one in found)


class KeepOrDiscard:
    """The effect of `sheets.objects`: apply the decision about an object.

    The decisions about an object need no order. The first decision is permanent and every later job repeats the decision, so
    late, repeated and reordered jobs have the same effect.
    """

    ordered = False

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def before(self, job: Job, newest: Done | None) -> Sequence[Job] | None:
        """Return (), because no job waits for an earlier job."""
        return ()

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        """Remove the marker of a completed upload, or delete a discarded object. A single call needs no checkpoint.

        Raises `Refuse` for an object that is no upload. Otherwise a record on the topic could delete a part of a snapshot.
        """
        if not job.log_id.startswith(PAYLOADS):
            raise Refuse(f"{job.log_id} is no upload: those begin with {PAYLOADS}")
        if job.value["keep"]:
            self._objects.unmark(job.log_id)
        else:
            # Keep the marker, because a slow client may write the object again.
            self._objects.delete(job.log_id)
        yield from ()

    def finish(self, job: Job, state: Any) -> Any:
        """Publish nothing, because the log made the decision."""
        return {"kept": job.value["keep"]}

    def stands(self, job: Job, result: Any) -> bool:
        """Whether the decision is still in effect: a discarded object, written again by a slow client, is deleted again.

        Garbage collection takes care of a reappeared marker.
        """
        return bool(job.value["keep"]) or not job.log_id.startswith(PAYLOADS) or self._objects.size(job.log_id) is None

    def leftovers(self, *, inputs: bool) -> Sequence[str]:
        """The number of uploads without a reference after a reset that deletes the inputs, in a sentence.

        If the inputs stay, the log repeats all its decisions, and nothing is left over.
        """
        if not inputs:
            return []
        number = sum(1 for _ in self._objects.ids(PAYLOADS))
        return [
            f"the claim to all {number:,} objects below {PAYLOADS} in the store: `onefold sheets sweep` finds them then"
        ]

    def start_over(self, *, inputs: bool) -> None:
        """Mark all uploads if the inputs are deleted too. No upload is deleted, because a client may complete the upload."""
        for name in self._objects.ids(PAYLOADS) if inputs else ():
            self._objects.mark(name)


def to_kafka(client: Mapping[str, str]) -> Produce:
    """A `Produce` with Kafka transactions, so that readers of committed records see no partial write."""

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
    """The number of cells, the number of bytes, and the SHA-256 in hex."""
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
    """Read the file again, and raise UserError at the end if its digest differs."""
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
