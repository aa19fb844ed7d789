"""Spark's checkpoint, as a temporary folder. Each start gets a new checkpoint. A lost checkpoint only costs a restart.

The sink only reads the exact end offsets of a batch, which Spark writes before handing the batch over. The rows do not have the
end offsets, because transaction markers and aborted records also take offsets.
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

_MEMORY = Path("/dev") / "shm"  # Linux's file system in memory


def scratch(root: Path) -> Path:
    """Return a folder in memory in place of `root`, because no file must survive, and memory avoids waits for the disk.

    Returns `root` without a file system in memory, or if the folder may belong to another user, because all users write there.
    """
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
    """Create a folder for a start of `name` in this process. Removes the folders of ended processes of `writer`."""
    for home in root.glob(f"{writer}.*"):
        if not _alive(home.name.rpartition(".")[2]):
            shutil.rmtree(home, ignore_errors=True)
    ours = root / f"{writer}.{os.getpid()}" / name
    ours.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=ours))


def ends(path: Path, batch_id: int) -> dict[Partition, int]:
    """Return the end offset of every partition in batch `batch_id`. Raises Rewind if Spark's file is missing or corrupted."""
    try:
        # a line with the version, a line about the batch, and a line of JSON for the source
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
    except (PermissionError, ValueError):  # another user's process, or another kind of folder: do not remove
        return True
    return True
