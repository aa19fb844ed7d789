"""Wrong parts of an upload, each without one of the rules of docs/objects.md, which tests must detect."""

from collections.abc import Iterator
from typing import Any, BinaryIO

from onefold.jobs.apps.sheets import uploads
from onefold.jobs.apps.sheets.uploads import KeepOrDiscard, Upload
from onefold.jobs.protocols import Done, Job, Objects
from tests.support.uploads import Produce


class _Unmarked:
    """A store that sets no expiration markers."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def mark(self, name: str) -> None:
        pass


def create_unmarked(objects: Objects, sheet_id: str, request: str, file: BinaryIO) -> Upload:
    """Omit the expiration marker."""
    return uploads.create(_Unmarked(objects), sheet_id, request, file)


def upload_then_mark(objects: Objects, made: Upload, file: BinaryIO) -> None:
    """Write before setting the marker."""
    uploads.upload(_Unmarked(objects), made, file)
    objects.mark(made.object_id)


def delete_at_once(objects: Objects, produce: Produce, older_than_s: float = 0) -> int:
    """Delete directly, without a request to the pipeline."""
    found = list(uploads.unnamed(objects, older_than_s))
    for one in found:
        objects.delete(one.name)
        objects.unmark(one.name)
    return len(found)


class UnmarkAfterwards(KeepOrDiscard):
    """An effect that removes the marker after the deletion."""

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        yield from super().steps(job, state, newest)
        self._objects.unmark(job.log_id)


class UnmarkBefore(KeepOrDiscard):
    """An effect that removes the marker before the deletion."""

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        self._objects.unmark(job.log_id)
        yield from super().steps(job, state, newest)


class NeverUnmark(KeepOrDiscard):
    """An effect that keeps the marker of a kept object."""

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        if not job.value["keep"]:
            yield from super().steps(job, state, newest)
