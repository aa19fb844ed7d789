"""The account of PostgreSQL if root starts a stack: PostgreSQL refuses root.

Each stack has a separate numeric user id, without an entry in /etc/passwd: the machine stays unchanged, and no foreign
program runs under the id. Only initdb looks up the user, so `nobody` makes the database, and root gives the files to the
stack's account.
"""

from __future__ import annotations

import hashlib
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

Account = tuple[int, int]  # uid, gid

MAKER = "nobody"  # exists on every Unix
# Unused, right above the last id of containers, 0x6FFF_FFFF (systemd's docs/UIDS-GIDS.md).
_IDS = range(0x7000_0000, 0x7100_0000)
# For a user namespace with the first 65,536 ids only: systemd's range of unused ids.
_FEW_IDS = range(60_578, 61_184)
_MAPS = (Path("/proc/self/uid_map"), Path("/proc/self/gid_map"))


def maker() -> Account | None:
    """The account that makes a database; None for this process's account."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam(MAKER)
    return entry.pw_uid, entry.pw_gid


def of(home: Path, data: Path) -> Account | None:
    """The account that the database in the folder `data` of the stack's `home` runs as; None for this process's account.

    A database of a user, or of a stack's account, keeps the owner. A database of 0.1.0 belongs to `nobody`.
    """
    made = maker()
    if made is None:
        return None
    if data.is_dir() and (found := data.stat()).st_uid not in (0, made[0]):
        return found.st_uid, found.st_gid
    number = next(_numbers(home))
    return number, number


def is_named(account: Account) -> bool:
    """Whether the system has a name for the account's user id."""
    try:
        pwd.getpwuid(account[0])
    except KeyError:
        return False
    return True


def give(path: Path, account: Account) -> None:
    """Change the owner of a folder's content, then of the folder, so that an interrupted call is repeated. Follows no links."""
    for folder, names, files in os.walk(path):
        for name in (*names, *files):
            os.chown(Path(folder, name), *account, follow_symlinks=False)
    os.chown(path, *account)


def _numbers(home: Path) -> Iterator[int]:
    ids = _IDS if all(_is_mapped(_IDS, file) for file in _MAPS) else _FEW_IDS
    first = int.from_bytes(hashlib.sha256(str(home.resolve()).encode()).digest()[:8])
    for step in range(len(ids)):
        number = ids[(first + step) % len(ids)]
        if not is_named((number, number)):
            yield number


def _is_mapped(ids: range, file: Path) -> bool:
    """Whether the user namespace of the process has all of `ids`."""
    if not file.exists():  # not Linux
        return True
    maps = (tuple(map(int, line.split())) for line in file.read_text(encoding="ascii").splitlines())
    return any(begin <= ids[0] and ids[-1] < begin + count for begin, _, count in maps)
