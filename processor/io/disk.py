"""Files of states: RocksDB, in a folder for each task (docs/decisions/state-on-disk.md).

    <folder>/<pipeline>/<partition>        the files
    <folder>/<pipeline>/<partition>.lock   locked by whoever has them

The lock is the operating system's, and goes with its process. A task that comes to a process while another one, which hangs or
is slow to end, still has its files gets files of its own beside them, `<partition>.1` and so on; they are deleted when the first
ones are free again. Of a task with replicas each one on this machine has files, and so many are kept.

The log of writes is not synced: after a kill all of it is in the system's memory, and after a power cut RocksDB goes on from a
beginning of it that is whole. Its own checksums find what is torn.
"""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, WriteBatch

from onefold.error_codes import Code
from onefold.processor.core.errors import Damaged, Refused

# Of what the engine may take: a third is the cache of blocks as they are on disk, the rest what was written last and waits to be
# sorted into files: one part that is filled, and one that is being written.
_CACHE_SHARE, _BUFFERS = 3, 2
# Less does not work well, and more brings nothing: a start after a kill has to read the buffers' log again.
_BUFFER_BYTES_MIN, _BUFFER_BYTES_MAX = 1 << 20, 32 << 20
# Bits a key by which a file tells that it has not a key; a new key is looked for in each. One in a hundred is looked for in vain.
_FILTER_BITS = 10
# Files that are open at once, of 64 MB each: what more there are is opened when it is needed.
_OPEN_FILES = 256
# Threads that sort files. Folding takes a core, and whatever else runs here the others.
_JOBS = 2
# States hold what events held: nobody else reads them, whatever the umask of who starts a processor by hand.
_OURS = 0o700
# Of folders of one task; more than two have never been needed.
_FOLDERS_MAX = 8


class RocksDisk:
    """The files of one task (see `core.abc.Disk`).

    Args:
        folder: of the pipeline.
        partition: the task.
        memory_bytes: what the engine may take of memory.
        keepers: how many processes may have the task at once.
    """

    def __init__(self, folder: Path, partition: int, memory_bytes: int, keepers: int = 1) -> None:
        self._folder = folder
        self._partition = partition
        self._memory_bytes = memory_bytes
        self._keepers = keepers
        self._path: Path | None = None
        self._lock = -1

    def exists(self) -> bool:
        """Whether there are files of before."""
        return self._taken().exists()

    def open(self) -> "RocksEngine":
        """The engine, with what was in it, or empty."""
        return RocksEngine(self._taken(), self._memory_bytes)

    def clear(self) -> None:
        """Delete the files."""
        _remove(self._taken())

    def close(self) -> None:
        """Let others have the files."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock, self._path = -1, None

    def _taken(self) -> Path:
        if self._path is None:
            try:
                self._folder.mkdir(mode=_OURS, parents=True, exist_ok=True)
                if self._folder.stat().st_mode & 0o077:  # of an older Onefold
                    with suppress(PermissionError):
                        self._folder.chmod(_OURS)
                self._path, self._lock = self._first_free()
                if self._path == self._named(0):
                    self._tidy()
            except OSError as error:
                raise Refused(
                    Code.STATES_FOLDER,
                    f"states cannot be kept on disk in {self._folder}: {error.strerror}. "
                    f"Set ONEFOLD_STATE_HOME to a folder that can be written to, or ONEFOLD_STATE=memory",
                ) from error
        return self._path

    def _named(self, number: int) -> Path:
        return self._folder / (f"{self._partition}.{number}" if number else f"{self._partition}")

    def _first_free(self) -> tuple[Path, int]:
        for number in range(_FOLDERS_MAX):
            path = self._named(number)
            if (lock := _locked(path)) is not None:
                return path, lock
        raise Refused(
            Code.STATES_FOLDER,
            f"{_FOLDERS_MAX} processes have states of task {self._partition} in {self._folder}: end those that hang",
        )

    def _tidy(self) -> None:
        """What was made while somebody else had these files."""
        for number in range(self._keepers, _FOLDERS_MAX):
            path = self._named(number)
            if path.exists() and (lock := _locked(path)) is not None:
                _remove(path)
                os.close(lock)


def _locked(path: Path) -> int | None:
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class RocksEngine:
    """An open RocksDB (see `core.abc.Engine`)."""

    def __init__(self, path: Path, memory_bytes: int) -> None:
        try:
            self._db = Rdict(str(path), _options(memory_bytes))
        except Exception as error:
            raise _damaged(error) from error

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        try:
            found: bytes | None = self._db.get(key)
        except Exception as error:
            raise _damaged(error) from error
        return found

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """All of these values or none of them."""
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in changes:
            if value is None:
                delete(key)
            else:
                put(key, value)
        try:
            self._db.write(batch)
        except Exception as error:
            raise _damaged(error) from error

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that begin so, and their values, in order, as of now."""
        found: Any = None
        try:
            found = self._db.iter()
            found.seek(prefix)
            while found.valid():
                key: Any = found.key()
                if not key.startswith(prefix):
                    return
                value: Any = found.value()
                yield key, value
                found.next()
            # The library's own `items` leaves this out: of a torn file it gives what comes before the tear, as if that were all.
            found.status()
        except Exception as error:
            raise _damaged(error) from error
        finally:
            found = None  # it keeps the files open, and whoever looks at the error keeps it

    def about(self) -> int:
        """About how many keys there are: one that was written again lately may count twice."""
        return int(self._db.property_int_value("rocksdb.estimate-num-keys") or 0)

    def close(self) -> None:
        """Use it no more."""
        with suppress(Exception):  # it is closed, or broken: then its files say so
            self._db.close()


def _damaged(error: Exception) -> Damaged:
    return Damaged(
        Code.STATES_DAMAGED,
        f"states on disk cannot be used: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
    )


def _options(memory_bytes: int) -> Any:
    cache = memory_bytes // _CACHE_SHARE
    buffer = (memory_bytes - cache) // _BUFFERS
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(cache))
    blocks.set_bloom_filter(_FILTER_BITS, False)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(min(max(buffer, _BUFFER_BYTES_MIN), _BUFFER_BYTES_MAX))
    options.set_max_write_buffer_number(_BUFFERS)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_open_files(_OPEN_FILES)
    options.set_max_background_jobs(_JOBS)
    options.set_keep_log_file_num(1)
    return options
