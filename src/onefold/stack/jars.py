"""The jars of the broker and of Spark's Kafka connector: pinned by name and SHA-256, downloaded once per user by pyspark's Ivy.

Ivy gets every coordinate and reads no POM, so that Ivy resolves no dependencies and downloads exactly the jars of jars.lock. A
jar gets the final name in the cache only after a matching checksum, so that no truncated or changed download is used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from onefold import jvm
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.stack import filelock
from onefold.stack.java import ADVICE

LOCK_FILE = Path(__file__).with_name("jars.lock")
STALL_S = 90.0  # longer than a retry of Ivy, which waits 30 s for a silent server
SETTINGS_VARIABLE = "ONEFOLD_IVY_SETTINGS"  # the user's ivysettings.xml, for a mirror behind a firewall

Progress = Callable[[int, int], None]  # (downloaded jars, all jars)


@dataclass(frozen=True)
class Jar:
    """One line of jars.lock."""

    group: str
    sha256: str
    organisation: str
    name: str
    version: str

    @property
    def file_name(self) -> str:
        """The name of the file in the cache."""
        return f"{self.name}-{self.version}.jar"


def read_lock(text: str) -> list[Jar]:
    """The jars of a lock file. Raises ValueError for a line that is not `group sha256 organisation:name:version`."""
    jars = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split()
        if len(parts) != 3 or len(parts[1]) != 64 or parts[2].count(":") != 2:
            raise ValueError(f"not a line of jars.lock: {line!r}")
        jars.append(Jar(parts[0], parts[1], *parts[2].split(":")))
    return jars


def ensure(groups: str, cache: Path, java: Path, progress: Progress | None = None) -> list[Path]:
    """Download the missing and damaged jars of a group ("broker", "spark", "s3" or "peers"), or of several, as "broker spark".

    Several processes may call `ensure` at once.

    Returns:
        The paths of all jars, present and intact.

    Raises:
        UserError: jars are missing and cannot be fetched.
    """
    lock = read_lock(LOCK_FILE.read_text(encoding="utf-8"))
    grouped = {group: [jar for jar in lock if jar.group == group] for group in groups.split()}
    folder = cache / "jars"
    if os.pathsep in str(folder):
        raise UserError(
            Code.FOLDER_UNUSABLE,
            f"Java cannot read jars in {folder}: in its class path a colon is the end of a file's name",
            "Set ONEFOLD_CACHE to a folder that has no colon in its path.",
            USAGE,
        )
    paths = [folder / jar.file_name for jars in grouped.values() for jar in jars]
    if all(_stamp_holds(folder / f".{group}.stamp", jars, folder) for group, jars in grouped.items()):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.held(folder / ".lock"):
        # From a killed run: no other download runs while this process holds the lock.
        for torn in folder.glob(".fetch-*"):
            shutil.rmtree(torn, ignore_errors=True)
        missing = damaged([jar for jars in grouped.values() for jar in jars], folder)
        if missing:
            fetch(missing, folder, java, progress or (lambda done, total: None))
        for group, jars in grouped.items():
            (folder / f".{group}.stamp").write_text(json.dumps(_stamp(jars, folder)), encoding="utf-8")
    return paths


def damaged(jars: Iterable[Jar], folder: Path) -> list[Jar]:
    """The jars that are missing in the folder, or have another checksum than the pinned."""
    return [jar for jar in jars if not _intact(folder / jar.file_name, jar)]


def fetch(jars: Sequence[Jar], folder: Path, java: Path, progress: Progress) -> None:
    """Download the jars by one run of Ivy, and move jars with a matching checksum into the folder.

    Raises:
        UserError: a jar is missing or has another checksum, or Java does not run.
    """
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as made:
        scratch = Path(made)
        retrieved, log = scratch / "out", scratch / "log"
        command = _ivy_command(jars, scratch, retrieved, java)
        with log.open("wb") as out, subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        ) as ivy:  # fmt: skip
            try:
                _wait(ivy, log, len(jars), progress)
            finally:
                ivy.kill()
        wrong = []
        for jar in jars:
            arrived = retrieved / jar.file_name
            if _intact(arrived, jar):
                os.replace(arrived, folder / jar.file_name)
            else:
                wrong.append((jar, arrived.exists()))
        if wrong:
            said = log.read_text(encoding="utf-8", errors="replace")
            if ivy.returncode > 0 and ":: " not in said:  # Java failed before Ivy's first output
                reason = jvm.last_words(said, ivy.returncode)
                raise UserError(Code.JAVA_UNUSABLE, f"Java ({java}) cannot fetch jars: {reason}", ADVICE)
            raise _download_error(wrong)


def _ivy_command(jars: Sequence[Jar], scratch: Path, retrieved: Path, java: Path) -> list[str]:
    from onefold.stack import truststore  # imports cryptography, which only a download needs

    settings = os.environ.get(SETTINGS_VARIABLE) or str(_write_settings(scratch))
    (scratch / "ivy.xml").write_text(_ivy_module(jars), encoding="utf-8")
    return [
        str(java),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *_proxy_flags(),
        *truststore.java_flags(scratch),
        *("-cp", str(_ivy_jar()), "org.apache.ivy.Main"),
        *("-settings", settings),
        *("-ivy", str(scratch / "ivy.xml")),
        *("-cache", str(scratch / "cache")),
        *("-retrieve", f"{retrieved}/[artifact]-[revision].[ext]"),
    ]


def _wait(ivy: subprocess.Popen[bytes], log: Path, total: int, progress: Progress) -> None:
    """Return when Ivy has ended, or after STALL_S without output."""
    written, deadline = -1, time.monotonic() + STALL_S
    while time.monotonic() < deadline:
        ended = ivy.poll() is not None
        said = log.read_bytes()
        progress(said.count(b"[SUCCESSFUL ]"), total)
        if ended:
            return
        if len(said) != written:
            written, deadline = len(said), time.monotonic() + STALL_S
        time.sleep(0.1)  # Ivy offers no event to wait for; often enough for a progress display


def _intact(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


def _stamp(jars: Sequence[Jar], folder: Path) -> dict[str, list[object]]:
    status = {jar: (folder / jar.file_name).stat() for jar in jars}
    return {jar.file_name: [jar.sha256, found.st_size, found.st_mtime_ns] for jar, found in status.items()}


def _stamp_holds(stamp: Path, jars: Sequence[Jar], folder: Path) -> bool:
    """Whether sizes and times are unchanged since the last full check: cheap enough for every start."""
    try:
        return bool(json.loads(stamp.read_text(encoding="utf-8")) == _stamp(jars, folder))
    except (OSError, ValueError):
        return False


def _ivy_jar() -> Path:
    package = importlib.util.find_spec("pyspark")
    found = sorted((Path(package.origin).parent / "jars").glob("ivy-*.jar")) if package and package.origin else []
    if not found:
        raise UserError(
            Code.PACKAGE_MISSING,
            "pyspark is not installed where onefold runs",
            "Run ./onefold, which makes its own environment.",
        )
    return found[-1]


def _write_settings(scratch: Path) -> Path:
    """Write Ivy settings for the public repository: without POMs, and with time-outs, so that a dead network is an error."""
    path = scratch / "settings.xml"
    path.write_text(
        '<ivysettings><settings defaultResolver="central"/>'
        '<timeout-constraints><timeout-constraint name="patient" connectionTimeout="10000" readTimeout="30000"/>'
        "</timeout-constraints>"
        '<resolvers><ibiblio name="central" m2compatible="true" usepoms="false" timeoutConstraint="patient"/>'
        "</resolvers></ivysettings>",
        encoding="utf-8",
    )
    return path


def _ivy_module(jars: Iterable[Jar]) -> str:
    lines = "".join(
        f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.name)} rev={quoteattr(jar.version)}"
        ' transitive="false" conf="default->default"/>'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="onefold" module="jars" revision="1"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{lines}</dependencies></ivy-module>'
    )


def _proxy_flags() -> list[str]:
    """JVM flags for the proxy in the environment: pip reads the proxy variables, a JVM does not."""
    address = urlsplit(os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or "")
    if not address.hostname:
        return []
    return [f"-Dhttps.proxyHost={address.hostname}", f"-Dhttps.proxyPort={address.port or 443}"]


def _download_error(wrong: Sequence[tuple[Jar, bool]]) -> UserError:
    changed = [jar for jar, arrived in wrong if arrived]
    if changed:
        return UserError(
            Code.JARS_MISSING,
            f"{changed[0].file_name} arrived with other content than jars.lock pins, so it was thrown away",
            "Something between here and the repository changes downloads: try another network.",
        )
    return UserError(
        Code.JARS_MISSING,
        f"could not download {len(wrong)} jar{'s' * (len(wrong) > 1)} ({wrong[0][0].file_name}"
        f"{', ...' if len(wrong) > 1 else ''}): the Maven repository did not answer",
        f"Check the network and run the command again, or set {SETTINGS_VARIABLE} to an Ivy settings file of a mirror.",
    )
