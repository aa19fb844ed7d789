"""State files: RocksDB, with a folder for each task (docs/decisions/state-on-disk.md).

    <folder>/<pipeline>/<partition>        the files
    <folder>/<pipeline>/<partition>.lock   locked by the owner

The operating system releases the lock when the owner's process ends. A task may come to a process while another process, which
hangs or ends slowly, still has the lock. The task then uses a folder of its own, `<partition>.1` and so on. When the
first folder is free again, its next owner deletes the further folders. With replicas, each replica on this
machine has a folder, and as many folders are kept.

The engine does not sync its write-ahead log. After a kill, the operating system still has all of the log. After a power loss,
RocksDB continues from an intact prefix of the log. RocksDB's checksums detect corrupted data.
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

# A third of the memory is the cache of blocks in their on-disk form. The rest is write buffers: one that is filled, and one
# that is flushed to a file.
_CACHE_SHARE, _BUFFERS = 3, 2
# Smaller buffers are slow. Larger buffers bring no benefit, and after a kill a start must read their log again.
_BUFFER_BYTES_MIN, _BUFFER_BYTES_MAX = 1 << 20, 32 << 20
# Bloom filter bits per key. The lookup of a new key asks each file; with ten bits, about one file in a hundred is read in vain.
_FILTER_BITS = 10
# Open files at once, of 64 MB each. RocksDB opens further files on demand.
_OPEN_FILES = 256
# Threads for flushes and compaction. Folding takes one core, other work the rest.
_JOBS = 2
# States contain event data, so other users must not read the files, whatever the umask.
_OURS = 0o700
# Folders of one task. More than two are unusual.
_FOLDERS_MAX = 8


class RocksDisk:
    """The state files of one task (see `core.abc.Disk`).

    Args:
        folder: the folder of the pipeline.
        partition: the task.
        memory_bytes: the engine's memory.
        keepers: the number of processes that may have the task at once.
    """

    def __init__(self, folder: Path, partition: int, memory_bytes: int, keepers: int = 1) -> None:
        self._folder = folder
        self._partition = partition
        self._memory_bytes = memory_bytes
        self._keepers = keepers
        self._path: Path | None = None
        self._lock = -1

    def exists(self) -> bool:
        """Return whether there are files from an earlier run."""
        return self._taken().exists()

    def open(self) -> "RocksEngine":
        """Open the engine, with its old content or empty."""
        return RocksEngine(self._taken(), self._memory_bytes)

    def clear(self) -> None:
        """Delete the files."""
        _remove(self._taken())

    def close(self) -> None:
        """Release the lock on the files."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock, self._path = -1, None

    def _taken(self) -> Path:
        if self._path is None:
            try:
                self._folder.mkdir(mode=_OURS, parents=True, exist_ok=True)
                if self._folder.stat().st_mode & 0o077:  # created by an older Onefold
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
        """Delete the folders from the time when another process had these files."""
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
    """An open RocksDB (see `core.abc.KeyValueEngine`)."""

    def __init__(self, path: Path, memory_bytes: int) -> None:
        try:
            self._db = Rdict(str(path), _options(memory_bytes))
        except Exception as error:
            raise _damaged(error) from error

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        try:
            found: bytes | None = self._db.get(key)
        except Exception as error:
            raise _damaged(error) from error
        return found

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write all values atomically."""
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
        """Yield the present keys with the prefix, and their values, in order."""
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
            # Rdict's own `items` omits this check, and ends without an error at a corrupted block.
            found.status()
        except Exception as error:
            raise _damaged(error) from error
        finally:
            found = None  # the iterator keeps the files open, and a traceback keeps the iterator

    def about(self) -> int:
        """Return the approximate number of keys. A recently overwritten key may count twice."""
        return int(self._db.property_int_value("rocksdb.estimate-num-keys") or 0)

    def close(self) -> None:
        """Close the files."""
        with suppress(Exception):  # closed already, or damaged: the next open reports the damage
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
