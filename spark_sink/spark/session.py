"""Spark's driver: a JVM started by this process or by `spark-submit`, and its session."""

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

# The connector's version in `jars.lock`, and the supported Spark line.
_VERSION = "4.0.0"
_SPARK = "4.0"
# The packages necessary for `spark-submit`, and a class of each package.
_CONNECTOR = {
    "org.apache.spark:spark-sql-kafka-0-10_2.13": "org/apache/spark/sql/kafka010/KafkaSourceProvider.class",
    "org.apache.spark:spark-avro_2.13": "org/apache/spark/sql/avro/AvroDataToCatalyst.class",
}
# The file with the JVM's output outside of log4j: warnings at the start, and the reason of a failed start.
_PRINTED = "spark.out"
# The user's name in a container with a user id without a name. Hadoop fails without a name.
_NAMELESS = "onefold"
# The variables of another Spark installation, with other versions, clusters and options.
_FOREIGN = (
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "PYSPARK_SUBMIT_ARGS",
    # of a running JVM, which belongs to another program unless `spark-submit` runs the sink, and of Spark Connect
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "SPARK_REMOTE",
    "SPARK_API_MODE",
    "SPARK_CONNECT_MODE",
    "SPARK_CONNECT_MODE_ENABLED",
)


# The location of Hadoop's cluster, necessary for the master `yarn`. A local Spark would use the cluster's file system.
_OF_THE_CLUSTER = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


class Driver:
    """Spark's driver: one JVM, with one session at a time.

    Args:
        jars: the Kafka connector and its dependencies; empty if `spark-submit` runs the sink.
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
        """Start the JVM at the first call, and a new session. The caller must stop the previous session before.

        Raises:
            Misconfigured: the JVM does not start, or `spark-submit` has invalid settings.
            Retriable: Spark does not start, for example because a cluster does not accept the application.
        """
        # py4j prints the stack trace of every exception that ends a query. The sink reports the exception in one sentence.
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
        """Return the settings of `spark-submit`'s JVM, completed by the sink's defaults."""
        gateway = _gateway(None)
        conf = SparkConf(_jvm=gateway.jvm)
        given = dict(conf.getAll())
        check_submitted(given)
        _check_submitted(gateway)
        wanted = replace(self._wanted, master=given["spark.master"])
        return _completed(conf, options((), self._scratch, (), wanted))

    def _launched(self) -> SparkConf:
        """Start a JVM, and return its settings."""
        wanted, scratch = self._wanted, self._scratch
        for name in _FOREIGN:
            if is_local(wanted.master) or name not in _OF_THE_CLUSTER:
                os.environ.pop(name, None)
        os.environ["JAVA_HOME"] = self._java_home
        nameless = not _has_a_name()
        if nameless:
            os.environ.setdefault("SPARK_USER", _NAMELESS)
        # Ivy fails without a home directory, even unused.
        settings = options(self._jars, scratch, (f"-Duser.home={scratch}",) if nameless else (), wanted)
        try:
            tempfile.gettempdir()  # the gateway writes its port to a file there
        except FileNotFoundError:
            os.environ["TMPDIR"] = str(scratch / "tmp")
        # Arguments of a process are visible to every user of the machine.
        arguments = SparkConf().setAll([(name, value) for name, value in settings.items() if not is_secret(name)])
        try:
            with (scratch / _PRINTED).open("wb") as printed:
                # The JVM writes warnings, and the reason of a failed start, which is on stdout.
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
    """Start a JVM for the sessions of this process, or connect to the JVM of `spark-submit`."""
    gateway = launch_gateway(arguments, pipes)  # type: ignore[no-untyped-call]  # PySpark has types for users only
    SparkContext._ensure_initialized(gateway=gateway)
    return gateway


def _completed(conf: SparkConf, settings: Mapping[str, str]) -> SparkConf:
    """Add the settings missing in `conf`, and log a warning about unprotected connections."""
    for name, value in settings.items():
        conf.setIfMissing(name, value)
    if warning := unprotected(dict(conf.getAll())):
        log.warning(warning)
    return conf


def _check_submitted(gateway: JavaGateway) -> None:
    """Raise Misconfigured if the Spark of `spark-submit` has another version line, or no Kafka connector."""
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
