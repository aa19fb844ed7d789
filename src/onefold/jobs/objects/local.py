"""Objects as files in a folder, for one machine. Writes are atomic, and durable on return.

The store writes an object to a temporary file, syncs the file, and links the file to the object's name. A link never
overwrites, and never exposes a partial file. Only the first of two writers succeeds, and the second writer detects the first.
After a crash, the temporary file remains in `unfinished/`. The other two folders are as in store.py.
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
    """The objects below a folder. Creates a missing folder if `makes` is True. Raises UserError: the folder is not usable."""

    def __init__(self, root: Path, *, makes: bool = True) -> None:
        self._objects, self._marks = root / OBJECTS, root / MARKS
        self._unfinished = root / UNFINISHED
        with _told(root):
            if not makes:
                if root.exists():
                    next(root.iterdir(), None)  # raises if the folder is not readable
                return
            private_files.folder(root)
            for folder in (self._objects, self._marks, self._unfinished):
                folder.mkdir(exist_ok=True)
            for folder in (root, root.parent):
                _make_durable(folder)

    def put(self, name: str, content: bytes) -> bool:
        """See `Objects`."""
        return self._write(name, (content,))[0]

    def put_stream(self, name: str, parts: Iterator[bytes]) -> int:
        """See `Objects`."""
        there = self.size(name)
        if there is not None:
            self._make_name_durable(self._path(name))
            return there
        written, size = self._write(name, parts)
        return size if written else self._path(name).stat().st_size

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See `Objects`."""
        path = self._path(name)
        with _told(path):
            try:
                with path.open("rb") as file:
                    file.seek(start)
                    return file.read() if end is None else file.read(max(0, end - start))
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise Missing(name) from None

    def size(self, name: str) -> int | None:
        """See `Objects`."""
        with suppress(FileNotFoundError, NotADirectoryError):
            path = self._path(name)
            return path.stat().st_size if path.is_file() else None
        return None

    def delete(self, name: str) -> None:
        """See `Objects`."""
        _remove(self._path(name))

    def ids(self, prefix: str = "") -> Iterator[str]:
        """See `Objects`."""
        return _names(self._objects, "", checked_prefix(prefix))

    def mark(self, name: str) -> None:
        """See `Objects`."""
        path = self._marks / checked(name)
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, draft = tempfile.mkstemp(dir=self._unfinished)
            os.fsync(handle)
            os.close(handle)
            # Replace the file instead of touching it, because another process may remove the old file at the same time.
            os.replace(draft, path)
            self._make_name_durable(path)

    def unmark(self, name: str) -> None:
        """See `Objects`."""
        _remove(self._marks / checked(name))

    def marks(self) -> Iterator[Mark]:
        """See `Objects`."""
        for name in _names(self._marks, "", ""):
            with suppress(FileNotFoundError):  # removed in the meantime
                yield Mark(name, datetime.fromtimestamp((self._marks / name).stat().st_mtime, UTC))

    def clear(self, older_than_s: float) -> int:
        """See `ObjectStore`."""
        cleared = 0
        with tempfile.TemporaryFile(dir=self._unfinished) as here:
            now = os.fstat(here.fileno()).st_mtime  # by the file system's clock, as the times of the other files
        for path in self._unfinished.glob(f"{tempfile.gettempprefix()}*"):  # only files of mkstemp
            with suppress(FileNotFoundError):
                if path.is_file() and now - path.stat().st_mtime >= older_than_s:
                    path.unlink()
                    cleared += 1
        return cleared

    def _path(self, name: str) -> Path:
        return self._objects / checked(name)

    def _write(self, name: str, parts: Iterable[bytes]) -> tuple[bool, int]:
        """Write an object. Returns whether the object is new, and the number of bytes in `parts`."""
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
        """Sync every parent folder, because a file or folder of another writer may not be on the disk yet."""
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
    """Sync the folder's entries to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _names(root: Path, folder: str, prefix: str) -> Iterator[str]:
    """Yield the files below a folder ("" or with a final /), sorted by full name. Holds one folder per level in memory."""
    with os.scandir(root / folder) as found:
        here = [folder + entry.name + ("/" if entry.is_dir() else "") for entry in found]
    # The character / sorts before all letters and digits, so the order folder by folder is the order of full names.
    for name in sorted(here):
        if name.endswith("/") and name.startswith(prefix[: len(name)]):
            yield from _names(root, name, prefix)
        elif not name.endswith("/") and name.startswith(prefix):
            yield name


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Convert an error of the file system into a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            Code.OBJECTS_SILENT,
            f"the store of objects cannot use {path}: {error.strerror or error}",
            "See whether there is room, and whether you may read and write there; or set ONEFOLD_OBJECTS to another place.",
        ) from error
