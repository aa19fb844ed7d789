"""The Spark session of this process."""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onefold.spark_sink.errors import Misconfigured, sentence
from onefold.spark_sink.spark.options import options


def spark_session(jars: Sequence[Path], java_home: str, scratch: Path, flags: Sequence[str] = ()) -> SparkSession:
    """The one session of this process. `jars` are the Kafka connector and its needs, `scratch` a writable folder, `flags` more
    options of the JVM."""
    asked = options(jars, scratch, flags)
    os.environ["JAVA_HOME"] = java_home
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder
    for name, value in asked.items():
        builder = builder.config(name, value)
    with _stderr_to(scratch / "spark.log"):
        return builder.getOrCreate()


def start(jars: Sequence[Path], java_home: str, scratch: Path, flags: Sequence[str] = ()) -> SparkSession:
    """As `spark_session`. Raises Misconfigured when Spark does not start with that Java."""
    # py4j prints the stack trace of every exception that ends a query; the sink reports it in a sentence of its own
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        return spark_session(jars, java_home, scratch, flags)
    except (PySparkException, OSError) as error:
        raise Misconfigured(f"Spark did not start with the Java in {java_home}: {sentence(error)}") from error


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Children that start now inherit `path` as their stderr: the JVM greets with warnings, and its Python workers
    say goodbye with stack traces."""
    ours = os.dup(2)
    try:
        with path.open("wb") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
