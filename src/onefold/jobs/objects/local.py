"""Objects as files of a folder, for one machine: whole or not at all, and on the disk when a call returns.

An object is written under another name, made durable, and then linked to its own. A link never overwrites and never shows
half of a file, so of two writers one is first and the other one learns it, and a process that dies leaves a file that nobody
sees. `unfinished/` has those; the other two folders are as in store.py.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from onefold.config import private_files
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.jobs.objects.store import MARKS, OBJECTS, checked, checked_prefix
from onefold.jobs.protocols import Mark, Missing

UNFINISHED = "unfinished"


class LocalStore:
    """The objects below a folder, which is made when it is not there, unless `makes` is False. Raises UserError: the folder
    cannot be used.
    """

    def __init__(self, root: Path, *, makes: bool = True) -> None:
        self._objects, self._marks = root / OBJECTS, root / MARKS
        self._unfinished = root / UNFINISHED
        with _told(root):
            if not makes:
                if root.exists():
                    next(root.iterdir(), None)  # a reader makes no folder, and needs one that it may read
                return
            private_files.folder(root)
            for folder in (self._objects, self._marks, self._unfinished):
                folder.mkdir(exist_ok=True)
            for folder in (root, root.parent):
                _make_durable(folder)

    def put(self, name: str, content: bytes) -> bool:
        """Write it, whole or not at all, durable on return. False: it was there, and nothing was written."""
        return self._write(name, (content,))[0]

    def put_stream(self, name: str, parts: Iterator[bytes]) -> int:
        """The same for what does not fit into memory; gives its size in bytes."""
        there = self.size(name)
        if there is not None:
            self._make_name_durable(self._path(name))
            return there
        written, size = self._write(name, parts)
        return size if written else self._path(name).stat().st_size

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Its bytes from `start` up to `end`. Raises `Missing`."""
        path = self._path(name)
        with _told(path):
            try:
                with path.open("rb") as file:
                    file.seek(start)
                    return file.read() if end is None else file.read(max(0, end - start))
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise Missing(name) from None

    def size(self, name: str) -> int | None:
        """In bytes; None: there is no such object."""
        with suppress(FileNotFoundError, NotADirectoryError):
            path = self._path(name)
            return path.stat().st_size if path.is_file() else None
        return None

    def delete(self, name: str) -> None:
        """Also of what is not there."""
        _remove(self._path(name))

    def ids(self, prefix: str = "") -> Iterator[str]:
        """Of all objects whose name begins so, sorted; marks are no objects."""
        return _names(self._objects, "", checked_prefix(prefix))

    def mark(self, name: str) -> None:
        """Set its expiry mark; the object need not be there yet. Again: the mark is as old as the newest call."""
        path = self._marks / checked(name)
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, draft = tempfile.mkstemp(dir=self._unfinished)
            os.fsync(handle)
            os.close(handle)
            # A new file in the place of the old one: one that is opened to be touched could be removed at that moment.
            os.replace(draft, path)
            self._make_name_durable(path)

    def unmark(self, name: str) -> None:
        """Remove its mark; also when there is none."""
        _remove(self._marks / checked(name))

    def marks(self) -> Iterator[Mark]:
        """All of them, oldest or not, in any order."""
        for name in _names(self._marks, "", ""):
            with suppress(FileNotFoundError):  # removed while we look
                yield Mark(name, datetime.fromtimestamp((self._marks / name).stat().st_mtime, UTC))

    def clear(self, older_than_s: float) -> int:
        """Remove what was begun so long ago and never became an object; gives how much that was."""
        cleared = 0
        with tempfile.TemporaryFile(dir=self._unfinished) as here:
            now = os.fstat(here.fileno()).st_mtime  # by the clock that the other files have their times from
        for path in self._unfinished.glob(f"{tempfile.gettempprefix()}*"):  # as mkstemp names them; others have others
            with suppress(FileNotFoundError):
                if path.is_file() and now - path.stat().st_mtime >= older_than_s:
                    path.unlink()
                    cleared += 1
        return cleared

    def _path(self, name: str) -> Path:
        return self._objects / checked(name)

    def _write(self, name: str, parts: Iterable[bytes]) -> tuple[bool, int]:
        """Whether it was not there before, and how many bytes came."""
        path, size = self._path(name), 0
        with _told(path):
            handle, draft = tempfile.mkstemp(dir=self._unfinished)
            try:
                with os.fdopen(handle, "wb") as file:
                    for part in parts:
                        file.write(part)
                        size += len(part)
                    file.flush()
                    os.fsync(file.fileno())
                path.parent.mkdir(parents=True, exist_ok=True)
                written = _linked(draft, path)
                self._make_name_durable(path)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(draft)  # noqa: PTH108  mkstemp gives a string
        return written, size

    def _make_name_durable(self, path: Path) -> None:
        """With every folder that it lies in: also when another writer made file or folder, it need not be on the disk yet."""
        for folder in path.parents:
            _make_durable(folder)
            if folder in (self._objects, self._marks):
                return


def _linked(draft: str, path: Path) -> bool:
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    return True


def _remove(path: Path) -> None:
    with _told(path), suppress(FileNotFoundError, NotADirectoryError):
        path.unlink()
        _make_durable(path.parent)


def _make_durable(folder: Path) -> None:
    """What has which name there is on the disk on return."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _names(root: Path, folder: str, prefix: str) -> Iterator[str]:
    """The files below a folder ("" or with a / at its end), sorted by their whole names; holds one folder in memory."""
    with os.scandir(root / folder) as found:
        here = [folder + entry.name + ("/" if entry.is_dir() else "") for entry in found]
    # The / is before all letters and digits, so what is sorted folder by folder is sorted as a whole.
    for name in sorted(here):
        if name.endswith("/") and name.startswith(prefix[: len(name)]):
            yield from _names(root, name, prefix)
        elif not name.endswith("/") and name.startswith(prefix):
            yield name


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the file system refuses, as a sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(
            Code.OBJECTS_SILENT,
            f"the store of objects cannot use {path}: {error.strerror or error}",
            "See whether there is room, and whether you may read and write there; or set ONEFOLD_OBJECTS to another place.",
        ) from error
