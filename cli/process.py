"""What a process of the command line sets right before anything else: text in UTF-8, and as many open files as it may have."""

from __future__ import annotations

import codecs
import locale
import os
import resource
import sys
from contextlib import suppress

# More than any of our processes needs; some programs that we start look at each number up to the limit.
OPEN_FILES = 65_536


def use_utf8() -> None:
    """Start this process again in Python's UTF-8 mode where the locale has another charset, and hand UTF-8 to every child.

    Names of files, the pipes of the command line and a user's own `open()` take their encoding from the process, and a JVM finds
    no file whose name its locale cannot write. Python 3.15 does the same by default.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a closed one is None
            stream.reconfigure(errors="backslashreplace")  # a name in no charset is shown, and ends nothing
    if codecs.lookup(locale.getencoding()).name == "utf-8":
        return
    os.environ.update(LC_ALL="C.UTF-8", PYTHONUTF8="1")
    if not sys.flags.utf8_mode:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606  the pid stays, no shell


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one, or to what is enough: a task of a processor has some fifty."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    while soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has a second limit, below an infinite one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return
        wanted //= 2
