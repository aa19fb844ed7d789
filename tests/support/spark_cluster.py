"""A standalone Spark cluster on this machine: a master and two workers, whose executors have no files of the sink."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyspark

from onefold.stack.ports import free_ports
from tests.support.waiting import eventually

WORKERS = 2
READY_S = 60.0
#: An invalid path, because executors need no Python.
NO_PYTHON = "/nonexistent/python3"
# Settings of all processes of the cluster, which could also run on several hosts.
PROTECTED = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": "of-the-cluster",
    "spark.network.crypto.enabled": "true",
}
# On several hosts the driver finds its address itself. The tests run on one machine.
_ON_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
#: Options of a sink on the cluster.
OPTIONS = {**PROTECTED, **_ON_LOOPBACK, "spark.executor.memory": "512m"}
# Account for the executors if root runs the tests; the account owns none of root's files.
_NOBODY = 65534
SPARK_HOME = Path(pyspark.__file__).parent
_CLASSES = {"master": "org.apache.spark.deploy.master.Master", "worker": "org.apache.spark.deploy.worker.Worker"}
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class SparkCluster:
    """Processes of the cluster, each of which a test may kill.

    Attributes:
        folder: of the executors, with their logs.
        port: of the master.
    """

    def __init__(self, java_home: str, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = free_ports(1)[0]
        self._java_home = java_home
        self._properties = folder / "spark.properties"
        self._properties.write_text("".join(f"{name} {value}\n" for name, value in settings.items()), encoding="utf-8")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start_master(self) -> None:
        """Start the master, and wait until connections are accepted."""
        self._start("master", "--port", str(self.port))
        eventually(self._answers, READY_S, "the master answers")

    def start_worker(self, number: int) -> None:
        """Start a worker with one core."""
        name = f"worker-{number}"
        self._start(name, "--cores", "1", "--memory", "1g", "--work-dir", f"{self.folder}/{name}", self.master)

    def executors(self) -> list[psutil.Process]:
        """Running executors."""
        found = []
        for name, process in self.processes.items():
            if name != "master" and process.poll() is None:
                with suppress(psutil.NoSuchProcess):
                    found += [one for one in psutil.Process(process.pid).children() if _EXECUTOR in one.cmdline()]
        return found

    def kill(self, name: str) -> None:
        """Kill the master or a worker with SIGKILL."""
        self.processes[name].kill()
        self.processes[name].wait(10)

    def log(self, name: str) -> str:
        """Log of the master or a worker, since the first start."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    def end(self) -> None:
        """Kill all processes; executors end with their workers."""
        executors = self.executors()
        for process in self.processes.values():
            process.kill()
            process.wait(10)
        for executor in executors:
            with suppress(psutil.NoSuchProcess):
                executor.send_signal(signal.SIGKILL)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True
        return False

    def _start(self, name: str, *arguments: str) -> None:
        main = _CLASSES[name.partition("-")[0]]
        java = [f"{self._java_home}/bin/java", "-cp", f"{SPARK_HOME}/jars/*", "-Xmx512m", main]
        own = ["--host", "127.0.0.1", "--webui-port", "0", "--properties-file", str(self._properties)]
        environment = {
            "PATH": os.defpath,
            "JAVA_HOME": self._java_home,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_SCALA_VERSION": "2.13",  # as in Spark's own scripts
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": NO_PYTHON,
        }
        with (self.folder / f"{name}.log").open("wb") as out:
            self.processes[name] = subprocess.Popen(
                [*java, *own, *arguments],
                cwd=self.folder,
                env=environment,
                stdout=out,
                stderr=out,
                user=_account(),
                group=_account(),
                extra_groups=None if _account() is None else [],
            )


def _account() -> int | None:
    return _NOBODY if os.geteuid() == 0 else None


@contextmanager
def spark_cluster(java_home: str, settings: Mapping[str, str], workers: int = WORKERS) -> Iterator[SparkCluster]:
    """Start a master and workers in a separate folder, because another account cannot enter pytest's folders."""
    folder = Path(tempfile.mkdtemp(prefix="onefold-spark-"))
    cluster = None
    try:
        cluster = SparkCluster(java_home, folder, settings)
        if account := _account():
            os.chown(folder, account, account)
        cluster.start_master()
        for number in range(workers):
            cluster.start_worker(number)
        yield cluster
    finally:
        if cluster is not None:
            cluster.end()
        shutil.rmtree(folder, ignore_errors=True)
