"""The common names and layout of all stores.

    objects/<name>    The objects.
    marks/<name>      The expiration markers: empty, with the time of the newest call of `mark`.

The layout is the same in a folder and in a bucket, so users can copy a store between both kinds.
"""

from __future__ import annotations

import re
from typing import Protocol

from onefold.jobs.protocols import Objects

OBJECTS, MARKS = "objects/", "marks/"
#: A relative path without `..` and hidden files. S3 accepts 1024 bytes including the prefix.
_NAME = re.compile(r"[a-z0-9]+(?:/[a-z0-9]+)*")
_NAME_MAX = 512
#: The prefix of a name.
_PREFIX = re.compile(r"(?:[a-z0-9]+(?:/[a-z0-9]+)*/?)?")
#: Amazon's rule for new buckets.
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class ObjectStore(Objects, Protocol):
    """A store of objects with maintenance: removes the invisible remains of crashed writers."""

    def clear(self, older_than_s: float) -> int:
        """Remove unfinished writes older than `older_than_s`. Returns the number of removed writes.

        A still running write fails, and the writer may repeat the write. The age only limits such repeats.
        """


def checked(name: str) -> str:
    """Return the name of an object. Raises ValueError: the name is not a path of [a-z0-9/], or too long."""
    if not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        raise ValueError(
            f"{name[:80]!r} is not the name of an object: a path of a-z, 0-9 and /, up to {_NAME_MAX} long"
        )
    return name


def checked_prefix(prefix: str) -> str:
    """Return the prefix of names. Raises ValueError: no name can have the prefix."""
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"{prefix[:80]!r} is not the beginning of a name: a path of a-z, 0-9 and /")
    return prefix
