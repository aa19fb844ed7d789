"""What all stores have in common: names, and where things lie.

    objects/<name>    the objects
    marks/<name>      their expiry marks: empty, and as old as the newest call that set them

The same in a folder and in a bucket, so that the one can be copied into the other.
"""

from __future__ import annotations

import re
from typing import Protocol

from onefold.jobs.protocols import Objects

OBJECTS, MARKS = "objects/", "marks/"
#: Names of folders that hold something: no way out of the store, and nothing hidden. S3 takes 1024 bytes with the prefix.
_NAME = re.compile(r"[a-z0-9]+(?:/[a-z0-9]+)*")
_NAME_MAX = 512
#: The beginning of a name.
_PREFIX = re.compile(r"(?:[a-z0-9]+(?:/[a-z0-9]+)*/?)?")
#: Amazon's rule for new buckets.
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class ObjectStore(Objects, Protocol):
    """A store of objects as it is kept up: with what a writer that died left behind, which nobody sees."""

    def clear(self, older_than_s: float) -> int:
        """Remove what was begun so long ago and never became an object; gives how much that was.

        A writer that is still at it fails, and may write again: age bounds what is repeated, and nothing else.
        """


def checked(name: str) -> str:
    """The name of an object. Raises ValueError: it is not a path of [a-z0-9/], or too long."""
    if not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        raise ValueError(
            f"{name[:80]!r} is not the name of an object: a path of a-z, 0-9 and /, up to {_NAME_MAX} long"
        )
    return name


def checked_prefix(prefix: str) -> str:
    """The beginning of names. Raises ValueError: no name begins so."""
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"{prefix[:80]!r} is not the beginning of a name: a path of a-z, 0-9 and /")
    return prefix
