"""Checkpoints of the verifier. A later verification reads from a checkpoint instead of from the beginning, and needs no earlier
records in the log.

A checkpoint is the verifier's state and offsets after the verdict *valid*, or those of a continuous verifier without
mismatches. The checkpoint is valid only for the same code, model, schemas and topic ids. Every verdict compares all rows; a
checkpoint only saves reading the log.

The name of a checkpoint file is the digest of its content. If a file is damaged, the verifier takes the previous one. The
digest does not reveal a forged file, and unpickling a forged file executes its code. So only the verifier may write to the
folder: the folder has the mode 0700. A folder of a different owner, or writable by more users, is refused. Processor and sink
need no access.
"""

import hashlib
import json
import os
import pickle
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from onefold import pipelines
from onefold.verify.additions import may_add
from onefold.verify.column_types import KINDS
from onefold.verify.expect import Workload
from onefold.verify.module_files import made_of
from onefold.verify.replays import Receipts

#: (topic, partition)
Place = tuple[str, int]

_VERSION = 1
# The newest checkpoint of a pipeline, and the previous one in case of damage.
_KEPT = 2
# Writing takes less time: the writer of an older draft was killed.
_DRAFT_S = 3600.0
_SUFFIX = ".checkpoint"
# The errors of unpickling for a missing name.
_UNREADABLE = (pickle.UnpicklingError, AttributeError, ImportError)
_PACKAGE = Path(__file__).parent
_ONEFOLD = Path(pipelines.__file__).parent
#: The distributions for reading and decoding records.
LIBRARIES = ("confluent-kafka", "fastavro")


class VerifierCheckpoint(NamedTuple):
    """The head of a checkpoint.

    Attributes:
        judge: the fingerprint of code, model, libraries and schemas (`fingerprint`).
        topics: by topic, the topic id.
        positions: the next offset to read.
        receipts: a digest of the dead letters replayed or dropped.
        records: the number of records read, from the beginning of the log.
        made_at: in UTC, ISO 8601.
    """

    judge: str
    topics: dict[str, str]
    positions: dict[Place, int]
    receipts: str
    records: int
    made_at: str


class Checkpoints:
    """The checkpoints of one pipeline.

    Args:
        folder: the folder for all pipelines.
    """

    def __init__(self, folder: Path, domain: str) -> None:
        self._folder = folder / domain

    def keep(self, checkpoint: VerifierCheckpoint, state: object, environment: Mapping[str, object]) -> str:
        """Write a checkpoint. Return why writing failed, or "". A failure does not affect the verdict.

        Args:
            environment: objects used by the state, but saved by name only. `newest` inserts the objects of its caller.
        """
        head = {
            "version": _VERSION,
            **checkpoint._asdict(),
            "positions": [[*place, at] for place, at in checkpoint.positions.items()],
        }
        draft = None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if problem := _open_to_others(self._folder):
                return problem
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix="draft-", delete=False) as file:  # mode 0600
                draft = Path(file.name)
                out = _Digesting(file)
                out.write(json.dumps(head).encode() + b"\n")
                _Pickler(out, environment).dump(state)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._folder / f"{out.digest}{_SUFFIX}")
        except (OSError, pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
            if draft is not None:
                draft.unlink(missing_ok=True)
            return f"the checkpoint of this verification could not be saved: {type(error).__name__}: {error}"
        self._evict(checkpoint)
        return ""

    def _evict(self, latest: VerifierCheckpoint) -> None:
        """Delete old checkpoints. A verifier with a different fingerprint, topics or receipts has files of its own."""
        there = [*self._folder.glob(f"*{_SUFFIX}")]
        heads = self._heads()
        ours = [path for head, path in heads if _same_judge(head, latest)]
        others = [path for head, path in heads if not _same_judge(head, latest)]
        for path in set(there) - {*ours[:_KEPT], *others[:_KEPT]}:
            path.unlink(missing_ok=True)
        for draft in self._folder.glob("draft-*"):
            with suppress(FileNotFoundError):
                if time.time() - draft.stat().st_mtime > _DRAFT_S:
                    draft.unlink()

    def newest(self, environment: Mapping[str, object]) -> Iterator[tuple[VerifierCheckpoint, "_Kept"]]:
        """Yield the existing checkpoints, the newest first, without unreadable heads and different versions."""
        if not self._folder.exists() or _open_to_others(self._folder):
            return
        for checkpoint, path in self._heads():
            yield checkpoint, _Kept(path, environment)

    def holding(
        self,
        judge: tuple[str, dict[str, str]],
        receipts: Receipts,
        starts: Mapping[Place, int],
        ends: Mapping[Place, int],
        environment: Mapping[str, object],
    ) -> tuple[VerifierCheckpoint, Any] | None:
        """Return the newest valid checkpoint for a verifier and a log, and its state; or None.

        Args:
            judge: the fingerprint, and the ids of the topics.
            receipts: the dead letters replayed or dropped by now.
            starts: the first offset of each partition in the log.
            ends: of all topics.
        """
        for checkpoint, found in self.newest(environment):
            at = checkpoint.positions
            if (checkpoint.judge, checkpoint.topics) != judge:
                continue
            if at.keys() != ends.keys() or any(at[place] > end for place, end in ends.items()):
                continue  # the log ends before the checkpoint: a different or truncated log
            if any(at[place] < start for place, start in starts.items()):
                continue  # the log starts behind the checkpoint
            state = found.state()
            if state is not None and state.replays.go_on(receipts, state.oracle.expected.dead, at):
                return checkpoint, state
        return None

    def _heads(self) -> list[tuple[VerifierCheckpoint, Path]]:
        found = []
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with suppress(OSError, ValueError, KeyError, TypeError), path.open("rb") as file:
                head = json.loads(file.readline())
                if head.pop("version") == _VERSION:
                    head["positions"] = {(topic, partition): at for topic, partition, at in head["positions"]}
                    found.append((VerifierCheckpoint(**head), path))
        return sorted(found, key=lambda one: one[0].made_at, reverse=True)


class _Kept(NamedTuple):
    """The state of a checkpoint, not loaded yet."""

    path: Path
    environment: Mapping[str, object]

    def state(self) -> Any:
        """Load the state. Return None if the file is missing, unreadable or damaged. A damaged file is deleted, so as not to
        count among the saved checkpoints.
        """
        with suppress(OSError, KeyError, *_UNREADABLE), self.path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self.path.name.removesuffix(_SUFFIX):
                self.path.unlink()
                return None
            file.seek(0)
            file.readline()
            return _Unpickler(file, self.environment).load()
        return None


def fingerprint(workload: Workload, *, with_registry: bool = False) -> str:
    """Return the fingerprint of everything behind a verdict, apart from log and tables. Included are the code of the verifier,
    the model with its imports and the files beside the model, and the schemas. Also included are the tables that merges
    may add up, the use of a schema registry, Python's version, and the versions of libraries.
    """
    files = [(file.name, file) for file in (*sorted(_PACKAGE.rglob("*.py")), *sorted(_ONEFOLD.glob("*.py")))]
    libraries = {*LIBRARIES}
    pipeline = pipelines.find().pipelines.get(workload.name)
    if pipeline is not None:
        module = pipeline.load_workload()
        if module is not None and module.__file__:
            files += [(file.name, file) for file in sorted(Path(module.__file__).parent.glob("*.py"))]
            of_model = made_of(module)
            files += sorted(of_model.files.items())
            libraries |= of_model.distributions
        files += [(file.name, file) for file in sorted(pipeline.contracts.rglob("*.avsc"))]
    versions = [f"{name} {metadata.version(name)}" for name in sorted(libraries)]
    digest = hashlib.sha256(f"{sys.version_info[:3]} {with_registry} {versions} {may_add(workload)}".encode())
    for name, file in files:
        content = file.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def environment_of(workload: Workload, contracts: Mapping[str, object]) -> dict[str, object]:
    """Return the objects used by a state, but saved by name only: the workload, its schemas, the column types, and the
    functions of a model, which may have no importable name.
    """
    found: dict[str, object] = {"workload": workload}
    found |= {f"table {table.name}": table for table in workload.tables}
    found |= {f"contract {topic}": contract for topic, contract in contracts.items()}
    found |= {f"kind {name} {part}": value for name, kind in KINDS.items() for part, value in kind._asdict().items()}
    function: Any = workload.model
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=True):
        found[f"of the model: {name}"] = cell.cell_contents
    return {name: value for name, value in found.items() if value is not None}


def digest_of(receipts: Receipts) -> str:
    """Return a digest of the dead letters replayed or dropped."""
    return hashlib.sha256("\n".join(sorted(map(str, receipts.items()))).encode()).hexdigest()


def now() -> str:
    """Return the present time, as in a checkpoint."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class _Digesting:
    """A file for writing, with the digest of its content."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Append data."""
        self._digest.update(data)
        return int(self._file.write(data))

    @property
    def digest(self) -> str:
        """The digest of the data so far."""
        return self._digest.hexdigest()


class _Pickler(pickle.Pickler):
    def __init__(self, file: _Digesting, environment: Mapping[str, object]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._names = {id(value): name for name, value in environment.items()}

    def persistent_id(self, value: object) -> str | None:
        return self._names.get(id(value))


class _Unpickler(pickle.Unpickler):  # noqa: S301 - `_open_to_others` refuses a folder that others write to
    def __init__(self, file: BinaryIO, environment: Mapping[str, object]) -> None:
        super().__init__(file)
        self._environment = environment

    def persistent_load(self, name: Any) -> object:
        return self._environment[name]


def _same_judge(one: VerifierCheckpoint, other: VerifierCheckpoint) -> bool:
    return (one.judge, one.receipts, one.topics) == (other.judge, other.receipts, other.topics)


def _open_to_others(folder: Path) -> str:
    """Return why the folder cannot be trusted, or ""."""
    found = folder.stat()
    if found.st_uid != os.geteuid():
        return f"{folder} belongs to another user: `verify` saves no checkpoint there"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write to {folder}: `verify` saves no checkpoint there; chmod go-w the folder"
    return ""
