"""An archive of the classes that a JVM loads: one that starts with it maps them, instead of finding, reading and checking them
one by one (docs/decisions/0035, docs/decisions/0044).

It is a file of the cache, named by what it was made with, so that it is never used with anything else. Only time depends on it:
a JVM goes on without one that is missing, torn or of another JVM. The standard library only.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

DRAFTS = ".draft-"  # how folders begin in which one is made
# Of as many Javas, releases or environments at once: up to 150 MB each.
_KEPT = 3


def place(folder: Path, jars: Sequence[Path], java_home: Path, flags: Sequence[str]) -> Path | None:
    """Where in `folder` the archive for this Java with these jars and options is, or would be.

    None for a Java that has no archive of its own classes: it cannot make one that builds upon it.
    """
    try:
        parts = [_told(file) for file in (java_home / "lib" / "server" / "classes.jsa", *jars)]
    except OSError:
        return None
    digest = hashlib.sha256(json.dumps([flags, parts]).encode()).hexdigest()
    return folder / f"{digest[:32]}.jsa"


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
