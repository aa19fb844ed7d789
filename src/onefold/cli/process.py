"""The beginning and the end of a process of the command line: text in UTF-8, as many open files as the system allows, and an
end that does not abort under a thread.
"""

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


def prepare_end() -> Callable[[int], NoReturn]:
    """A function that ends the process with an exit code. To be called before anything registers with `atexit`.

    A thread may still be inside a client's C code, which hears nothing. Before 3.14, Python ends such a thread where it takes
    the interpreter's lock, under the frames of that C code, and now and then the process aborts (python/cpython#87135). So
    while a daemon thread lives, the interpreter is not taken down: the process ends when all that is registered has run.
    """
    code = 1  # of an exception that nobody caught

    def leave() -> None:
        if any(thread.daemon for thread in threading.enumerate()):
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):  # its reader is gone, or it is closed
                    stream.flush()
            os._exit(code)

    def end(with_code: int) -> NoReturn:
        nonlocal code
        code = with_code
        sys.exit(code)

    atexit.register(leave)
    return end
