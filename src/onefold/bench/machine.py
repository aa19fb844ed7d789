"""Description of the machine, without which a figure means nothing."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import confluent_kafka
import psutil

from onefold import postgres
from onefold.stack.embedded import Infrastructure


def describe(running: Infrastructure) -> dict[str, str]:
    """Processor, memory, system and versions, for printing."""
    with postgres.connect(running.postgres_dsn, "onefold bench") as connection:
        (version,) = connection.execute("SHOW server_version").fetchone() or ("?",)
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": platform.platform(),
        "load before": f"{os.getloadavg()[0]:.2f}",
        "python": platform.python_version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "kafka": _kafka(running),
        "spark": metadata.version("pyspark"),
        "java": _java(running),
        "postgresql": version,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _kafka(running: Infrastructure) -> str:
    jars = (path.stem for path in running.broker.jars if path.name.startswith("kafka-server-"))
    return next((name.rpartition("-")[2] for name in jars), "?")


def _java(running: Infrastructure) -> str:
    printed = subprocess.run(
        [running.java.executable, "-version"], capture_output=True, encoding="utf-8", errors="replace", check=False
    ).stderr
    return (printed.splitlines() or ["?"])[0]
