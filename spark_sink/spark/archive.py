"""An archive of the classes that the sink's JVM loads: one that starts with it maps them, instead of finding, reading and
checking them one by one (docs/decisions/0035).

It is a file of the cache, named by what it was made with, so that it is never used with anything else. Only time depends on it:
a JVM goes on without one that is missing, torn or of another JVM.
"""

import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from onefold.spark_sink.spark.session import JVM

_FOLDER = "classes"
DRAFTS = ".draft-"  # how folders begin in which one is made
# Of as many Javas, Sparks or environments at once: some 150 MB each.
_KEPT = 3


def place(cache: Path, jars: Sequence[Path], java_home: str) -> Path | None:
    """Where in `cache` the archive for this Java and these jars of the Kafka connector is, or would be.

    None for a Java that has no archive of its own classes: it cannot make one that builds upon it.
    """
    spark = importlib.util.find_spec("pyspark")
    folders = spark.submodule_search_locations if spark is not None else None
    own = sorted(path for folder in folders or () for path in (Path(folder) / "jars").glob("*.jar"))
    try:
        parts = [_told(file) for file in (Path(java_home) / "lib" / "server" / "classes.jsa", *jars, *own)]
    except OSError:
        return None
    digest = hashlib.sha256(json.dumps([JVM, parts]).encode()).hexdigest()
    return cache / _FOLDER / f"{digest[:32]}.jsa"


def uses(archive: Path | None) -> Sequence[str]:
    """The options with which a JVM takes its classes from `archive`, if that is there; silent about one that does not fit."""
    if archive is None:
        return ()
    try:
        os.utime(archive)  # when it was last of use
    except FileNotFoundError:
        return ()
    except OSError:  # somebody else's: it can be read all the same
        pass
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def records(draft: Path) -> Sequence[str]:
    """The options with which a JVM writes such a file when it ends. It lives for seconds, so it does without its second
    compiler."""
    return (f"-XX:ArchiveClassesAtExit={draft}", "-Xlog:disable", "-XX:TieredStopAtLevel=1")


def clear_drafts(archive: Path) -> None:
    """Removes what makers that were killed have left. Nobody else may make one now."""
    for torn in archive.parent.glob(f"{DRAFTS}*"):
        shutil.rmtree(torn, ignore_errors=True)


def keep(draft: Path, archive: Path) -> None:
    """Gives the whole file its name, and removes those that have been of no use for the longest time."""
    with draft.open("rb") as file:
        os.fsync(file.fileno())  # under its name it is whole, even after a power cut
    draft.replace(archive)
    with suppress(OSError):  # another process may do the same
        for old in sorted(archive.parent.glob("*.jsa"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
            old.unlink()


def _told(file: Path) -> tuple[str, int, int]:
    """By this the JVM itself tells whether a jar is still the same."""
    found = file.stat()
    return str(file), found.st_size, found.st_mtime_ns
