"""What every JVM that we start needs, and what it says when it does not start. The standard library only."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_WORDS_LINES, _WORDS_CHARACTERS = 3, 500
# Lines that name no cause: what a JVM was handed, how it ends, frames of a stack trace, and where a report lies.
_NO_CAUSE = re.compile(
    r"\s*(?:Picked up |Error: Could not create the Java Virtual Machine|Error: A fatal exception has occurred"
    r"|at [\w.$/<>]+\(|\.\.\. \d+ more|WARNING: |Using Spark's default log4j|An error report file|/.*\.log$"
    r"|OpenJDK .* warning: |Java HotSpot.* warning: )"
)


def temporary(folder: Path) -> Sequence[str]:
    """Make `folder` and return the option by which a JVM puts its temporary files there.

    The libraries of snappy, zstd and lz4 are unpacked there and loaded, which a machine's /tmp may forbid (noexec). Where the
    folder cannot be made, as for a tool beside a home that is not the caller's, the JVM keeps its default.
    """
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            return (f"-Djava.io.tmpdir={folder}",)
    return ()


def as_properties(options: Mapping[str, object]) -> str:
    """As `java.util.Properties` reads them: a backslash opens an escape, and what is not ASCII is written as UTF-16."""
    return "".join(f"{name}={''.join(map(_escaped, str(value)))}\n" for name, value in options.items())


def last_words(text: str, code: int | None = None) -> str:
    """Return, in one line, why a JVM did not start: what it has said of the cause, or else how it ended.

    Args:
        text: its output and its errors.
        code: its exit code, negative for a signal; None where it is not known.
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
