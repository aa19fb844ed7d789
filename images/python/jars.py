"""Download a group of jars during the build of an image: `jars.py <group> <cache folder>`."""

import os
import shutil
import sys
from pathlib import Path

from onefold.stack import jars

# A time in nanoseconds without fractions of a second, because layers keep no fractions and the cache's stamp contains the
# times.
MODIFIED = 1_000_000_000


def main(group: str, cache: Path) -> None:
    """Download and check the jars, and stamp the cache, so that a read-only container needs no check."""
    java = Path(shutil.which("java") or sys.exit("jars.py: there is no java here"))
    for path in jars.ensure(group, cache, java):
        os.utime(path, (MODIFIED, MODIFIED))
    jars.ensure(group, cache, java)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
