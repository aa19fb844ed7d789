"""What was proved is kept, so that a later verdict reads on from there and not from the beginning of the log: it takes as long as
what has come since, and needs no more of the log than that.

A checkpoint is the judge's own state after a verdict *valid*, or that of an auditor that has found everything right, and the
offsets up to which it had read. It holds for the judge
that made it and for nothing else: for this code, this model, these contracts, these very topics. Rows are compared whole every
time, by every verdict; what a checkpoint spares is reading the log again.

A file of them is named by the digest of its content: a damaged one is left out, and the one before is taken. Nothing can be
told of a file that was forged, and unpickling it runs what it says. So the folder must be the judge's alone: it is made with
the mode 0700, and one that others may write to is not used. Processor and sink have no business there.
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
# Of a domain: the newest, and one to fall back on when that is damaged.
_KEPT = 2
# Nobody writes one for so long: who began it was killed.
_DRAFT_S = 3600.0
_SUFFIX = ".checkpoint"
# What unpickling raises where a name is not there any more.
_UNREADABLE = (pickle.UnpicklingError, AttributeError, ImportError)
_PACKAGE = Path(__file__).parent
_ONEFOLD = Path(pipelines.__file__).parent
#: The distributions that the verifier reads and decodes records with.
LIBRARIES = ("confluent-kafka", "fastavro")


class VerifierCheckpoint(NamedTuple):
    """What a checkpoint stands for.

    Attributes:
        judge: which code, model, libraries and contracts made it (`fingerprint`).
        topics: the id of each topic that was read.
        positions: what is read next.
        receipts: which dead letters had been replayed or dropped, as a digest.
        records: how many were read, from the beginning of the log.
        made_at: in UTC, ISO 8601.
    """

    judge: str
    topics: dict[str, str]
    positions: dict[Place, int]
    receipts: str
    records: int
    made_at: str


class Checkpoints:
    """Those of one domain, in a folder.

    Args:
        folder: for all domains.
    """

    def __init__(self, folder: Path, domain: str) -> None:
        self._folder = folder / domain

    def keep(self, checkpoint: VerifierCheckpoint, state: object, environment: Mapping[str, object]) -> str:
        """Write one. Returns why it could not be written, or "": a verdict is none the worse for that.

        Args:
            environment: objects that are not part of the state but used by it; `newest` puts its reader's in their place.
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
            with tempfile.NamedTemporaryFile(
                dir=self._folder, prefix="draft-", delete=False
            ) as file:  # for the owner alone
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
        """Delete what is of no use any more. Another judge, one with other receipts for example, has files of its own."""
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
        """What there is, the newest first. One that is damaged, or of another version, is left out."""
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
        """The newest that holds for a judge and a log, and its state.

        Args:
            judge: the fingerprint, and the ids of the topics.
            receipts: the dead letters that were replayed or dropped by now.
            starts: what must still be there of the log is what follows these.
            ends: of all topics.
        """
        for checkpoint, found in self.newest(environment):
            at = checkpoint.positions
            if (checkpoint.judge, checkpoint.topics) != judge:
                continue
            if at.keys() != ends.keys() or any(at[place] > end for place, end in ends.items()):
                continue  # the log ends before: it is another one, or was cut off
            if any(at[place] < start for place, start in starts.items()):
                continue  # what follows it is gone already
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
    """The state of a checkpoint, not read yet."""

    path: Path
    environment: Mapping[str, object]

    def state(self) -> Any:
        """None when it is gone, cannot be read here, or is damaged: then it is deleted, so that it does not count among those
        that are kept.
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
    """Of everything that a verdict on this domain depends on, but the log and the tables: the verifier's code, that of the model
    with all that it imports and the files beside it, the contracts, which merges may add, whether there is a schema registry,
    Python, and the versions of the libraries.
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
    """What a state uses and does not consist of: the workload, its contracts, the kinds of columns, and the functions of which a
    model is made, which may have no name to find them by.
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
    """Of the dead letters that were replayed or dropped."""
    return hashlib.sha256("\n".join(sorted(map(str, receipts.items()))).encode()).hexdigest()


def now() -> str:
    """The time that a checkpoint is made at."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class _Digesting:
    """A file that is written, and the digest of what was written."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Add to it."""
        self._digest.update(data)
        return int(self._file.write(data))

    @property
    def digest(self) -> str:
        """Of all so far."""
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
    """Why the folder cannot be trusted, or ""."""
    found = folder.stat()
    if found.st_uid != os.geteuid():
        return f"{folder} belongs to another user: `verify` saves no checkpoint there"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write to {folder}: `verify` saves no checkpoint there; chmod go-w the folder"
    return ""
