"""Starts a program behind a parent-death guard: it ends when its parent ends, however that happens, and never runs as root
if it must not.

Run as `python -I -S parent_guard.py <parent pid> <signal> <uid:gid or -> <program> [arguments...]`. It replaces itself with
the program, so the pid stays. A separate program instead of `preexec_fn`, because that runs Python between fork and exec,
which can deadlock a process that has threads, and librdkafka starts several.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def guard(parent: int, death_signal: int) -> None:
    """Asks Linux to send `death_signal` when the parent ends. Elsewhere the next `up` or `down` cleans up by recorded pid."""
    if not sys.platform.startswith("linux"):
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent:
        sys.exit(0)  # the parent ended before the guard was set: nobody wants this program any more


def become(account: str) -> None:
    """Turns root into `uid:gid`; `-` keeps the account."""
    if account == "-":
        return
    uid, gid = (int(part) for part in account.split(":"))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def main(arguments: list[str]) -> None:
    """Drops privileges, sets the guard and becomes the program."""
    parent, death_signal, account, *program = arguments
    become(account)  # first: a change of account removes the guard
    guard(int(parent), int(death_signal))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(program[0], program)  # noqa: S606  no shell is wanted: the pid must stay
    except OSError as error:
        sys.exit(f"cannot start {program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
