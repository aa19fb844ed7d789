"""Fetches a group of jars while an image is built: `jars.py <group> <cache folder>`."""

import os
import shutil
import sys
from pathlib import Path

from onefold.stack import jars

# Whole seconds: layers do not keep more, and the cache's stamp names sizes and times of what was checked.
MODIFIED = 1_000_000_000


def main(group: str, cache: Path) -> None:
    """Fetches and checks them, and stamps the cache, so that a read-only container has nothing to do."""
    java = Path(shutil.which("java") or sys.exit("jars.py: there is no java here"))
    for path in jars.ensure(group, cache, java):
        os.utime(path, (MODIFIED, MODIFIED))
    jars.ensure(group, cache, java)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
