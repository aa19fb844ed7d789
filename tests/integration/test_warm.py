"""A real archive of classes: a JVM takes its classes from it, and whoever makes one leaves no process behind."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from onefold import class_archive
from onefold.spark_sink.spark import archive
from onefold.stack import java
from onefold.stack import warm as kafka
from onefold.stack.embedded import Infrastructure, default_cache
from onefold.stack.jars import ensure
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.promise("class-archives")]

ROOT = Path(__file__).resolve().parents[2]
# A process of its own for each JVM: PySpark has one in each.
MAKE = """
import sys
from pathlib import Path
from onefold.spark_sink.spark import warm
file, home, *jars = sys.argv[1:]
print(warm.make(Path(file), [], [Path(jar) for jar in jars], home))
"""
START = """
import sys
from pathlib import Path
from onefold import class_archive
from onefold.spark_sink.spark import archive, session
file, home, *jars = sys.argv[1:]
found = session.spark_session([Path(jar) for jar in jars], home, Path(file).parent / "spark", class_archive.uses(Path(file)))
jvm = found.sparkContext._gateway.proc
print(file in Path(f"/proc/{jvm.pid}/maps").read_text(), found.range(3).count())
"""


@pytest.fixture
def place(infrastructure: Infrastructure, tmp_path: Path) -> Path:
    """Where the archive of this Java would be."""
    found = archive.place(tmp_path, infrastructure.spark_jars, str(infrastructure.java.spark_home))
    if found is None:
        pytest.skip("this Java has no archive of its own to build upon")
    return found


def python(program: str, file: Path, infrastructure: Infrastructure) -> str:
    given = [str(file), str(infrastructure.java.spark_home), *map(str, infrastructure.spark_jars)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program, *given], capture_output=True, encoding="utf-8", env=environment
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.long  # 30 s
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what a process has mapped is read from /proc")
def test_the_next_jvm_takes_its_classes_from_the_archive(place: Path, infrastructure: Infrastructure) -> None:
    assert python(MAKE, place, infrastructure) == "True"
    assert [path.name for path in place.parent.iterdir() if path.name.startswith(class_archive.DRAFTS)] == []
    assert python(START, place, infrastructure) == "True 3"


def test_a_maker_that_is_asked_to_end_leaves_nothing_behind(place: Path, tmp_path: Path) -> None:
    """As at `onefold down`, or when the supervisor is gone."""
    ensure("spark", default_cache(), java.locate(tmp_path).executable)
    (tmp_path / "jars").symlink_to(default_cache() / "jars")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "ONEFOLD_CACHE": str(tmp_path)}
    command = [sys.executable, "-P", "-m", "onefold.cli.main", "warm"]
    maker = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, encoding="utf-8")
    try:
        jvm = eventually(lambda: recording(maker.pid), 60, "the JVM that writes classes down has begun")
        maker.send_signal(signal.SIGTERM)
        assert maker.wait(10) == 128 + signal.SIGTERM
    finally:
        maker.kill()
        _, said = maker.communicate()
    assert jvm is not None, "eventually gives what is true"
    eventually(lambda: not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE, 5, "its JVM is gone")
    assert "Traceback" not in said, said
    assert list(tmp_path.glob("classes/*.jsa")) == []


def recording(pid: int) -> psutil.Process | None:
    """The JVM below this process that would write an archive when it ends."""
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # Spark's launcher has ended
            if any(part.startswith("-XX:ArchiveClassesAtExit") for part in child.cmdline()):
                return child
    return None


@pytest.mark.long  # 15 s
def test_a_broker_writes_down_what_it_loads_and_the_next_one_takes_it(
    infrastructure: Infrastructure, tmp_path: Path
) -> None:
    """And is gone then; a broker starts by itself, so that nothing but its command line is looked at."""
    broker = infrastructure.broker
    place = kafka.place(tmp_path, broker.jars, broker.java)
    if place is None:
        pytest.skip("this Java has no archive of its own to build upon")
    plain = replace(broker, archive=place).command()
    assert kafka.make(place, broker.jars, broker.java)
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    command = replace(broker, archive=place).command()
    assert set(command) - set(plain) >= {f"-XX:SharedArchiveFile={place}"}
    shared = subprocess.run(
        [*command[:-2], "-Xlog:class+load=info", "kafka.Kafka"], capture_output=True, encoding="utf-8", check=False
    )
    found = [line for line in shared.stdout.splitlines() if " kafka.Kafka" in line]
    assert found, shared.stdout[-500:]
    assert all("shared objects file (top)" in line for line in found)
