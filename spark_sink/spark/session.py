"""The driver of Spark: a JVM of this process, and its session."""

import logging
import os
import pwd
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark
import structlog
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from onefold import jvm
from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured, Retriable
from onefold.spark_sink.errors import sentence
from onefold.spark_sink.spark.options import SparkSettings, check_submitted, is_local, is_secret, options, unprotected

log = structlog.get_logger()

# The connector of `jars.lock`, and the line of Spark that it belongs to.
_VERSION = "4.0.0"
_SPARK = "4.0"
# The packages that `spark-submit` needs, and a class of each.
_CONNECTOR = {
    "org.apache.spark:spark-sql-kafka-0-10_2.13": "org/apache/spark/sql/kafka010/KafkaSourceProvider.class",
    "org.apache.spark:spark-avro_2.13": "org/apache/spark/sql/avro/AvroDataToCatalyst.class",
}
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
    # of a JVM that runs already, which is another program's unless `spark-submit` runs the sink, and of Spark Connect
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "SPARK_REMOTE",
    "SPARK_API_MODE",
    "SPARK_CONNECT_MODE",
    "SPARK_CONNECT_MODE_ENABLED",
)


# Where Hadoop's cluster is, which a master yarn has to know. A local Spark would take its file system.
_OF_THE_CLUSTER = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


class Driver:
    """Spark's driver: one JVM, with one session at a time.

    Args:
        jars: the Kafka connector and its needs; none if `spark-submit` runs the sink.
        scratch: a writable folder.
    """

    def __init__(
        self, jars: Sequence[Path], java_home: str, scratch: Path, wanted: SparkSettings | None = None
    ) -> None:
        self._jars = jars
        self._java_home = java_home
        self._scratch = scratch
        self._wanted = wanted or SparkSettings()
        self._conf: SparkConf | None = None

    def start(self) -> SparkSession:
        """Start the JVM, unless it runs, and a session in it. The session before has to be stopped.

        Raises:
            Misconfigured: the JVM does not start, or `spark-submit` has settings that cannot be.
            Retriable: Spark does not start; so it is while a cluster does not take the application.
        """
        # py4j prints the stack trace of every exception that ends a query; the sink reports it in a sentence of its own
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        if self._conf is None:
            self._conf = self._submitted() if self._wanted.submitted else self._launched()
        try:
            context = SparkContext(conf=self._conf)
            try:
                return SparkSession.builder.getOrCreate()
            except BaseException:
                context.stop()
                raise
        except (PySparkException, Py4JError) as error:
            raise Retriable(Code.SPARK_NOT_STARTED, f"Spark did not start: {sentence(error)}") from error

    def _submitted(self) -> SparkConf:
        """The settings of the JVM in which `spark-submit` runs the sink, and what is missing there."""
        gateway = _gateway(None)
        conf = SparkConf(_jvm=gateway.jvm)
        given = dict(conf.getAll())
        check_submitted(given)
        _check_submitted(gateway)
        wanted = replace(self._wanted, master=given["spark.master"])
        return _completed(conf, options((), self._scratch, (), wanted))

    def _launched(self) -> SparkConf:
        """The settings of a JVM of the sink's own, which this starts."""
        wanted, scratch = self._wanted, self._scratch
        for name in _FOREIGN:
            if is_local(wanted.master) or name not in _OF_THE_CLUSTER:
                os.environ.pop(name, None)
        os.environ["JAVA_HOME"] = self._java_home
        nameless = not _has_a_name()
        if nameless:
            os.environ.setdefault("SPARK_USER", _NAMELESS)
        # Without a home Ivy fails, although the sink needs nothing of Ivy.
        settings = options(self._jars, scratch, (f"-Duser.home={scratch}",) if nameless else (), wanted)
        try:
            tempfile.gettempdir()  # the gateway says there where it listens
        except FileNotFoundError:
            os.environ["TMPDIR"] = str(scratch / "tmp")
        # These are arguments of a process, which every user of the machine can list.
        arguments = SparkConf().setAll([(name, value) for name, value in settings.items() if not is_secret(name)])
        try:
            with (scratch / _PRINTED).open("wb") as printed:
                # The JVM greets with warnings, and why it cannot start is on stdout.
                gateway = _gateway(arguments, {"stdout": printed, "stderr": subprocess.STDOUT})
        except PySparkException as error:
            said = (scratch / _PRINTED).read_text(encoding="utf-8", errors="replace")
            raise Misconfigured(
                Code.SPARK_NOT_STARTED,
                f"Spark did not start with the Java in {self._java_home}: {jvm.last_words(said)}",
            ) from error
        except OSError as error:
            raise Misconfigured(Code.SPARK_NOT_STARTED, f"Spark did not start: {sentence(error)}") from error
        if nameless:
            users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
            users.setLoginUser(users.createRemoteUser(_NAMELESS))
        return _completed(SparkConf(_jvm=gateway.jvm), settings)


def _gateway(arguments: SparkConf | None, pipes: dict[str, Any] | None = None) -> JavaGateway:
    """Start a JVM for the sessions of this process, or take that of `spark-submit`."""
    gateway = launch_gateway(arguments, pipes)  # type: ignore[no-untyped-call]  # PySpark has types for users only
    SparkContext._ensure_initialized(gateway=gateway)
    return gateway


def _completed(conf: SparkConf, settings: Mapping[str, str]) -> SparkConf:
    """Add what is missing."""
    for name, value in settings.items():
        conf.setIfMissing(name, value)
    if warning := unprotected(dict(conf.getAll())):
        log.warning(warning)
    return conf


def _check_submitted(gateway: JavaGateway) -> None:
    """Raises Misconfigured if the Spark of `spark-submit` is of another line, or has no Kafka connector."""
    found = pyspark.__version__
    if not found.startswith(f"{_SPARK}."):
        raise Misconfigured(
            Code.SPARK_NOT_STARTED, f"the sink needs Spark {_SPARK}, and spark-submit is of Spark {found}"
        )
    loader = gateway.jvm.Thread.currentThread().getContextClassLoader()
    for package, name in _CONNECTOR.items():
        if loader.getResource(name) is None:
            packages = ",".join(f"{one}:{_VERSION}" for one in _CONNECTOR)
            raise Misconfigured(Code.SPARK_NOT_STARTED, f"spark-submit has no {package}: add --packages {packages}")


def _has_a_name() -> bool:
    try:
        return bool(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:
        return False
