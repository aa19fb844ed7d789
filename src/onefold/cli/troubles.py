"""Messages for errors of the operating system: an unusable file, a full disk, a name that is not UTF-8."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE

_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR)
_NO_MORE_FILES = (errno.EMFILE, errno.ENFILE)
# Python's surrogates for bytes that are not UTF-8.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def of_file(error: OSError) -> UserError | None:
    """The message for an error of the file system; None for any other error, which is a bug."""
    setting = _setting_of(str(error.filename)) if error.filename else None
    place = f"{error.filename}: {error.strerror}"
    if error.errno in _FULL or (error.errno == errno.EROFS and not error.filename):
        where = f"Make room where ONEFOLD_{setting or 'HOME'} is, or set it to another place."
        return UserError(Code.DISK_FULL, f"nothing more can be written: {error.strerror}", where)
    if error.errno in _NO_MORE_FILES:
        return UserError(
            Code.TOO_FEW_OPEN_FILES,
            f"{error.strerror}: {error.filename}" if error.filename else f"{error.strerror}",
            "Raise the limit of open files: ulimit -Hn, LimitNOFILE= of systemd, or --ulimit nofile= of docker run.",
        )
    if error.errno == errno.ENOENT and not error.filename and _is_nowhere():
        return UserError(
            Code.FOLDER_UNUSABLE,
            "the working folder was removed",
            "Change to a folder that exists, and run the command again.",
        )
    if error.errno in _UNUSABLE and error.filename:
        if setting:
            return UserError(
                Code.FILE_UNUSABLE,
                place,
                f"Set ONEFOLD_{setting} to a folder that the user with uid {os.geteuid()} may write to.",
            )
        return UserError(
            Code.FILE_UNUSABLE, place, f"The command runs as the user with uid {os.geteuid()}, who needs that file."
        )
    return None


def _is_nowhere() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def of_text(error: UnicodeEncodeError) -> UserError | None:
    """The message for an argument, a variable or a file's name that is not UTF-8; None for any other text."""
    if not _NOT_UTF8.search(error.object):
        return None
    return UserError(
        Code.NOT_UTF8,
        f"this is not text in UTF-8: {ascii(error.object)[:200]}",
        "Write names and values in UTF-8.",
        USAGE,
    )


def _setting_of(path: str) -> str | None:
    """The setting with the folder that contains the path; None for other paths, and if the settings are unreadable."""
    from onefold.config.settings import load  # imports pydantic, which an early error does not need

    try:
        settings = load()
    except (UserError, OSError):
        return None
    folders = {"JUDGE_HOME": settings.judge_home, "STATE_HOME": settings.state_home, "CACHE": settings.cache}
    for name, folder in {**folders, "HOME": settings.home}.items():
        # For a folder that cannot be created, the error names the first missing parent.
        if folder is not None and (Path(path).is_relative_to(folder) or folder.is_relative_to(path)):
            return name
    return None
