"""Start a program, as another account if given, with a parent-death guard: Linux signals the program when the parent ends.

Run as `python -I -S parent_guard.py <parent pid> <signal> <uid:gid or -> <program> [arguments...]`. The guard replaces itself
with the program, so the pid stays. A separate program instead of `preexec_fn`: Python code between fork and exec can deadlock
a process with threads, and librdkafka starts several.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def guard(parent: int, death_signal: int) -> None:
    """Ask Linux to send `death_signal` when the parent ends. On macOS the next `up` or `down` cleans up by recorded pid."""
    if not sys.platform.startswith("linux"):
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent:
        sys.exit(0)  # the parent ended before the guard was set


def become(account: str) -> None:
    """Change the account from root to `uid:gid`; `-` keeps the account."""
    if account == "-":
        return
    uid, gid = (int(part) for part in account.split(":"))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def main(arguments: list[str]) -> None:
    """Drop privileges, set the guard and exec the program."""
    parent, death_signal, account, *program = arguments
    become(account)  # first: a change of account removes the guard
    guard(int(parent), int(death_signal))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(program[0], program)  # noqa: S606  no shell, because the pid must stay
    except OSError as error:
        sys.exit(f"cannot start {program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
