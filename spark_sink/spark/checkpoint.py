"""Spark's checkpoint: a scratch pad. Each start gets a fresh one, and losing it costs nothing but that start.

Only one thing is ever read from it: the exact end offsets of the batch at hand, which Spark writes down before it
hands the batch over. The rows themselves cannot tell: transaction markers and aborted records take offsets too.
"""

import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

from onefold.error_codes import Code
from onefold.spark_sink.errors import Rewind
from onefold.spark_sink.landing.ledger import Partition

_MEMORY = Path("/dev") / "shm"  # where Linux keeps a file system in memory


def scratch(root: Path) -> Path:
    """A folder in memory that stands for `root`, where there is one: nothing in it has to survive, so no disk has to
    be waited for. Otherwise `root` itself, also where the folder could be somebody else's: all users write there."""
    ours = _MEMORY / f"onefold-{os.geteuid()}"
    try:
        ours.mkdir(mode=0o700, exist_ok=True)
        found = ours.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return root
        ours.chmod(0o700)
    except OSError:
        return root
    return ours / str(root.absolute()).strip("/").replace("/", "-")


def fresh(root: Path, writer: str, name: str) -> Path:
    """A new folder for a start of `name` in this process. Those of dead processes of `writer` are removed."""
    for home in root.glob(f"{writer}.*"):
        if not _alive(home.name.rpartition(".")[2]):
            shutil.rmtree(home, ignore_errors=True)
    ours = root / f"{writer}.{os.getpid()}" / name
    ours.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=ours))


def ends(path: Path, batch_id: int) -> dict[Partition, int]:
    """The end offset of every partition in batch `batch_id`. Raises Rewind when Spark's note is gone or garbled."""
    try:
        # a version line, a line about the batch, and one line of JSON for our one source
        source = json.loads((path / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()[2])
        return {
            (topic, int(partition)): int(offset)
            for topic, partitions in source.items()
            for partition, offset in partitions.items()
        }
    except (OSError, ValueError, IndexError, AttributeError, TypeError) as error:
        raise Rewind(
            Code.CHECKPOINT_LOST, f"Spark's checkpoint was lost or damaged ({type(error).__name__})"
        ) from error


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError):  # somebody else's process, or no name of ours: not ours to remove
        return True
    return True
