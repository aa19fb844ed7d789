"""Parts of an upload as they must not be, each without one of the rules of docs/objects.md: for tests to catch."""

from collections.abc import Iterator
from typing import Any, BinaryIO

from onefold.jobs.apps.sheets import uploads
from onefold.jobs.apps.sheets.uploads import KeepOrDiscard, Upload
from onefold.jobs.protocols import Done, Job, Objects
from tests.support.uploads import Produce


class _Unmarked:
    """A store whose marks are not set."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def mark(self, name: str) -> None:
        pass


def create_unmarked(objects: Objects, sheet_id: str, request: str, file: BinaryIO) -> Upload:
    """Leaves the mark for later."""
    return uploads.create(_Unmarked(objects), sheet_id, request, file)


def upload_then_mark(objects: Objects, made: Upload, file: BinaryIO) -> None:
    """Writes first."""
    uploads.upload(_Unmarked(objects), made, file)
    objects.mark(made.object_id)


def delete_at_once(objects: Objects, produce: Produce, older_than_s: float = 0) -> int:
    """A sweep that asks nobody."""
    found = list(uploads.unnamed(objects, older_than_s))
    for one in found:
        objects.delete(one.name)
        objects.unmark(one.name)
    return len(found)


class UnmarkAfterwards(KeepOrDiscard):
    """An effect that forgets the mark of what it has deleted."""

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        yield from super().steps(job, state, newest)
        self._objects.unmark(job.log_id)


class UnmarkBefore(KeepOrDiscard):
    """The same, the other way round."""

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        self._objects.unmark(job.log_id)
        yield from super().steps(job, state, newest)


class NeverUnmark(KeepOrDiscard):
    """An effect that leaves the mark on what is kept."""

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        if not job.value["keep"]:
            yield from super().steps(job, state, newest)
