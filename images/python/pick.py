"""Select packages, with their versions and hashes, from a lock file: `pick.py only|without <file of names>... < lock`.

A file of names has a package per line, and optionally a reason after #. A name missing in the lock file is an error, because
the selection would silently lack a package.
"""

import re
import sys
from pathlib import Path


def main(mode: str, *files: str) -> None:
    """Write the selected entries to standard output."""
    entries = {
        block.partition("==")[0]: block for block in re.split(r"^(?=[a-z0-9])", sys.stdin.read(), flags=re.MULTILINE)
    }
    names = set()
    for file in files:
        with Path(file).open(encoding="utf-8") as lines:
            names |= {name for line in lines if (name := line.partition("#")[0].strip())}
    if mode not in ("only", "without"):
        sys.exit(f"pick.py: {mode!r} is neither only nor without")
    if unknown := names - entries.keys():
        sys.exit(f"pick.py: requirements.lock does not have {', '.join(sorted(unknown))}; correct images/python")
    sys.stdout.writelines(block for name, block in entries.items() if (name in names) == (mode == "only"))


if __name__ == "__main__":
    main(*sys.argv[1:])
