"""The options of every started JVM, and the reason of a failed start. The standard library only."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_WORDS_LINES, _WORDS_CHARACTERS = 3, 500
# Lines without a cause: a JVM's options, the exit, frames of a stack trace, and the path of a report.
_NO_CAUSE = re.compile(
    r"\s*(?:Picked up |Error: Could not create the Java Virtual Machine|Error: A fatal exception has occurred"
    r"|at [\w.$/<>]+\(|\.\.\. \d+ more|WARNING: |Using Spark's default log4j|An error report file|/.*\.log$"
    r"|OpenJDK .* warning: |Java HotSpot.* warning: )"
)


def temporary(folder: Path) -> Sequence[str]:
    """Make `folder` and return the JVM option for temporary files in `folder`.

    The JVM unpacks and loads the libraries of snappy, zstd and lz4 there; a machine's /tmp may forbid loading (noexec). If
    the folder cannot be made, as for a tool of a user without rights to the data directory, the JVM keeps the default.
    """
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            return (f"-Djava.io.tmpdir={folder}",)
    return ()


def as_properties(options: Mapping[str, object]) -> str:
    """Escape a text for `java.util.Properties`: a backslash opens an escape, and characters beyond ASCII are UTF-16 escapes."""
    return "".join(f"{name}={''.join(map(_escaped, str(value)))}\n" for name, value in options.items())


def last_words(text: str, code: int | None = None) -> str:
    """Return, in one line, why a JVM did not start: the cause in the output, or the way of the exit.

    Args:
        text: the JVM's output and errors.
        code: the exit code, negative for a signal; None if unknown.
    """
    lines = [line.removeprefix("#") for line in text.splitlines()]
    causes = [line.strip().rstrip(".") for line in lines if line.strip() and not _NO_CAUSE.match(line)]
    if causes:
        return "; ".join(causes[-_WORDS_LINES:])[:_WORDS_CHARACTERS]
    if code is None:
        return "its JVM ended and said nothing"
    return f"its JVM {f'was killed by signal {-code}' if code < 0 else f'ended with exit code {code}'} and said nothing"


def _escaped(character: str) -> str:
    if character.isascii() and character.isprintable() and character not in "\\ ":
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
