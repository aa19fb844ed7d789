"""Start and end of a process of the command line: UTF-8, the limit of open files, and an exit with running threads."""

from __future__ import annotations

import atexit
import codecs
import locale
import os
import resource
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

# More than a process needs. Not higher, because some child programs loop over all numbers up to the limit.
OPEN_FILES = 65_536


def use_utf8() -> None:
    """Restart the process in Python's UTF-8 mode if the locale has another charset, and set UTF-8 for all child processes.

    The process determines the encoding of file names, of pipes and of a user's `open()`. A JVM finds no file with a name that
    the locale cannot encode. Python 3.15 uses UTF-8 by default.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a closed stream is None
            stream.reconfigure(errors="backslashreplace")  # printing a name that the charset lacks must not fail
    if codecs.lookup(locale.getencoding()).name == "utf-8":
        return
    os.environ.update(LC_ALL="C.UTF-8", PYTHONUTF8="1")
    if not sys.flags.utf8_mode:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606  the pid stays, no shell


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit, at most to OPEN_FILES: a task of a processor opens many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    while soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has a second limit, below an infinite one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return
        wanted //= 2


def prepare_end() -> Callable[[int], NoReturn]:
    """A function that ends the process with an exit code. Call `prepare_end` before any registration with `atexit`.

    A thread may still run C code of a client. Before 3.14, Python ends the thread at the acquisition of the interpreter's lock,
    below the frames of the C code, and the process may abort (python/cpython#87135). While a daemon thread runs, the process
    therefore exits after all `atexit` functions, without finalizing the interpreter.
    """
    code = 1  # after an uncaught exception

    def leave() -> None:
        if any(thread.daemon for thread in threading.enumerate()):
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):  # the reader has ended, or the stream is closed
                    stream.flush()
            os._exit(code)

    def end(with_code: int) -> NoReturn:
        nonlocal code
        code = with_code
        sys.exit(code)

    atexit.register(leave)
    return end
