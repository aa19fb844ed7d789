"""The Spark session of this process."""

import logging
import os
import pwd
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from onefold import jvm
from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured
from onefold.spark_sink.errors import sentence
from onefold.spark_sink.spark.options import options

# What the JVM itself prints, and not by log4j: warnings at its start, and why it cannot start.
_PRINTED = "spark.out"
# Hadoop asks the system who we are, and fails where a container runs under a number that has no name.
_NAMELESS = "onefold"
# Of another Spark on the machine. Its version, its cluster and its options are not those of the sink.
_FOREIGN = (
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "PYSPARK_SUBMIT_ARGS",
    # of a JVM that runs already, and of Spark Connect
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "SPARK_REMOTE",
    "SPARK_API_MODE",
    "SPARK_CONNECT_MODE",
    "SPARK_CONNECT_MODE_ENABLED",
)


def spark_session(jars: Sequence[Path], java_home: str, scratch: Path) -> SparkSession:
    """The one session of this process. `jars` are the Kafka connector and its needs, `scratch` a writable folder."""
    for name in _FOREIGN:
        os.environ.pop(name, None)
    os.environ["JAVA_HOME"] = java_home
    nameless = not _has_a_name()
    if nameless:
        os.environ.setdefault("SPARK_USER", _NAMELESS)
    # Without a home Ivy fails, although the sink needs nothing of Ivy.
    flags = (f"-Duser.home={scratch}",) if nameless else ()
    asked = SparkConf().setAll([*options(jars, scratch, flags).items()])
    try:
        tempfile.gettempdir()  # the gateway says there where it listens
    except FileNotFoundError:
        os.environ["TMPDIR"] = str(scratch / "tmp")
    with (scratch / _PRINTED).open("wb") as printed:
        # The JVM greets with warnings, and why it cannot start is on stdout.
        pipes = {"stdout": printed, "stderr": subprocess.STDOUT}
        gateway = launch_gateway(asked, pipes)  # type: ignore[no-untyped-call]  # PySpark has types for users only
    if nameless:
        users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
        users.setLoginUser(users.createRemoteUser(_NAMELESS))
    SparkContext(conf=asked, gateway=gateway)
    return SparkSession.builder.getOrCreate()


def start(jars: Sequence[Path], java_home: str, scratch: Path) -> SparkSession:
    """As `spark_session`. Raises Misconfigured when Spark does not start with that Java."""
    # py4j prints the stack trace of every exception that ends a query; the sink reports it in a sentence of its own
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        return spark_session(jars, java_home, scratch)
    except PySparkException as error:
        said = (scratch / _PRINTED).read_text(encoding="utf-8", errors="replace")
        raise Misconfigured(
            Code.SPARK_NOT_STARTED, f"Spark did not start with the Java in {java_home}: {jvm.last_words(said)}"
        ) from error
    except OSError as error:
        raise Misconfigured(Code.SPARK_NOT_STARTED, f"Spark did not start: {sentence(error)}") from error


def _has_a_name() -> bool:
    try:
        return bool(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:
        return False
