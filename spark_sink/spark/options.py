"""The settings of Spark and its JVMs: the user's settings and the defaults. The module does not import PySpark."""

import ipaddress
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onefold import jvm
from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured

#: Spark's log file in the scratch folder, for developers. The sink itself reports errors to the user, in one sentence each.
LOG = "spark.log"
# The maximum size of each log file. A query that fails at every start repeatedly writes stack traces.
_LOG_BYTES = 10_000_000
_LOG_FILES = 3


def _log4j(log: Path) -> str:
    """The configuration of log4j with files of limited size. Escapes variables and patterns of log4j in the path."""
    path = str(log).replace("${", "$${")
    return jvm.as_properties(
        {
            "rootLogger.level": "error",
            "rootLogger.appenderRef.file.ref": "file",
            "appender.file.type": "RollingFile",
            "appender.file.name": "file",
            "appender.file.fileName": path,
            # log4j resolves variables again when a file is full.
            "appender.file.filePattern": path.replace("$${", "$$${").replace("%", "%%") + ".%i",
            "appender.file.append": "false",
            "appender.file.layout.type": "PatternLayout",
            "appender.file.layout.charset": "UTF-8",
            "appender.file.layout.pattern": "%d{HH:mm:ss} %p %c{1}: %m%n",
            "appender.file.policies.type": "Policies",
            "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
            "appender.file.policies.size.size": _LOG_BYTES,
            "appender.file.strategy.type": "DefaultRolloverStrategy",
            "appender.file.strategy.max": _LOG_FILES - 1,
        }
    )


#: The local master with one concurrent task per core.
LOCAL = "local[*]"
# With the number of cores, and the maximum number of failures of a task.
_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)(,[1-9]\d*)?\])?")
_PLACE = r"[^/\s,]+:\d{1,5}"
_MASTER = re.compile(rf"{_LOCAL.pattern}|spark://{_PLACE}(,{_PLACE})*|k8s://\S+|yarn")
# The texts of numbers and times, and the meaning of a query in sql/reduce, depend on these settings.
_OWN = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.api.mode": "classic",  # Spark Connect has no foreachBatch in the client's process
}
_OWN_BEGIN = ("spark.sql.legacy.", "spark.remote")
_SECRET = re.compile("(?i)secret|password|token|access[.]?key")  # equal to Spark's spark.redaction.regex
_ENCRYPTION = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption")

_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark reads a held batch only a few times, so compression costs more than the larger size.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.shuffle.partitions": "1",  # only reductions shuffle, and the data of a shuffle is small
    # Adaptive execution does not change such small plans, and costs time in every batch
    # (docs/decisions/batches-and-limits.md).
    "spark.sql.adaptive.enabled": "false",
    # A line may have several MB, and a buffer is limited to 2 GB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024 * 1024),
    # The interval of an idle query's requests to Kafka. With the default, an idle sink uses much more of a core.
    "spark.sql.streaming.pollingDelay": "50ms",
    # The default is no limit, but a restart also stops the query. The longest wait is a batch waiting for Kafka (read.py).
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.sql.streaming.minBatchesToRetain": "5",
    # The checkpoint is temporary, and needs no checksum files. Spark's default manager also makes Hadoop start processes to
    # check each file for symbolic links.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}

# The parallel collector needs the least processor time, and does not run concurrently with the work
# (docs/decisions/jvm-settings.md).
JVM = ("-XX:+UseParallelGC",)

# For a local master: no other host can reach a port of the driver.
_ON_THIS_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_ON_OTHERS = {
    "spark.executor.defaultJavaOptions": " ".join(JVM),
    "spark.executor.userClassPathFirst": "true",  # otherwise Spark's own jars precede `spark.jars`
}


@dataclass(frozen=True)
class SparkSettings:
    """The user's settings of Spark.

    Attributes:
        options: settings by Spark's names.
        submitted: whether `spark-submit` runs the sink; its master, settings and class path then take precedence.
    """

    master: str = LOCAL
    options: Mapping[str, str] = field(default_factory=dict)
    submitted: bool = False


def check_master(master: str) -> None:
    """Raise Misconfigured if `master` is not a master's address."""
    if not _MASTER.fullmatch(master):
        raise Misconfigured(
            Code.SETTING_WRONG,
            f"{master!r} is no master: give {LOCAL}, local[4], spark://host:7077, k8s://https://host:6443 or yarn",
        )


def check_options(given: Mapping[str, str]) -> None:
    """Raise Misconfigured, with the name of the setting, if the user must not set one of the settings."""
    for name in sorted(given):
        if not name.startswith("spark."):
            raise Misconfigured(Code.SETTING_WRONG, f"{name!r} is no setting of Spark: their names begin with spark.")
        if name == "spark.master":
            raise Misconfigured(Code.SETTING_WRONG, f"{name!r} has a variable of its own: ONEFOLD_SPARK_MASTER")
        if name in _OWN or name.startswith(_OWN_BEGIN):
            raise Misconfigured(Code.SETTING_WRONG, f"the Spark setting {name!r} is Onefold's own, and cannot be set")


def check_submitted(found: Mapping[str, str]) -> None:
    """Raise Misconfigured if `spark-submit`, or its spark-defaults.conf, has a setting that would change the rows."""
    for name, value in sorted(found.items()):
        if name.startswith(_OWN_BEGIN) or _OWN.get(name, value).lower() != value.lower():
            own = f"leave it out or set {_OWN[name]}" if name in _OWN else "leave it out"
            raise Misconfigured(Code.SETTING_WRONG, f"the Spark setting {name!r} is Onefold's own: {own}")


def is_local(master: str) -> bool:
    """Whether the tasks run in the driver's JVM."""
    return _LOCAL.fullmatch(master) is not None


def is_secret(text: str) -> bool:
    """Whether the setting named `text` is a secret. For a value, such as JVM options: whether the value has a secret's name."""
    return _SECRET.search(text) is not None


def hosts(master: str) -> list[tuple[str, int]]:
    """The hosts and ports of a standalone master and its standbys. [] for other kinds of masters."""
    places = master.removeprefix("spark://").split(",") if master.startswith("spark://") else []
    return [(host.strip("[]"), int(port)) for host, _, port in (place.rpartition(":") for place in places)]


def unprotected(found: Mapping[str, str]) -> str:
    """A warning if connections to executors on other hosts lack authentication or encryption, else ""."""
    master, on = found["spark.master"], {name for name, value in found.items() if value.lower() == "true"}
    if is_local(master) or (hosts(master) and all(_is_loopback(host) for host, _ in hosts(master))):
        return ""
    missing = [name for name in ("spark.authenticate",) if name not in on]
    missing += [] if on.intersection(_ENCRYPTION) else _ENCRYPTION[:1]
    if not missing:
        return ""
    return (
        f"Spark's connections at {master} are open: whoever reaches them reads the records and Kafka's login. "
        f"Set {' and '.join(missing)} to true"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def options(
    jars: Sequence[Path], scratch: Path, flags: Sequence[str] = (), wanted: SparkSettings | None = None
) -> dict[str, str]:
    """Return Spark's settings by name, and prepare the scratch folder.

    Args:
        jars: the Kafka connector and its dependencies.
        scratch: a writable folder.
        flags: further options of the JVM.

    Raises:
        Misconfigured: the path of a folder has a comma, which Spark does not support.
    """
    wanted = wanted or SparkSettings()
    if "," in str(scratch):
        raise Misconfigured(
            Code.SPARK_NOT_STARTED,
            f"Spark cannot work in {scratch}: it reads a comma as the end of a folder's name; set ONEFOLD_HOME to a folder that "
            "has no comma in its path",
        )
    log4j = scratch / "log4j2.properties"
    if log4j.exists():  # otherwise the folder may belong to another program
        shutil.rmtree(scratch / "tmp", ignore_errors=True)  # may have libraries of a killed JVM
    scratch.mkdir(parents=True, exist_ok=True)
    log4j.write_text(_log4j(scratch / LOG), encoding="ascii")
    driver = [f"-Dlog4j2.configurationFile={log4j.as_uri()}", *JVM]
    return {
        "spark.app.name": "onefold",
        # Spark appends the user's options.
        "spark.driver.defaultJavaOptions": " ".join(
            [*driver, *map(shlex.quote, [*jvm.temporary(scratch / "tmp"), *flags])]
        ),
        "spark.local.dir": str(scratch / "local"),
        **_SETTINGS,
        **(_ON_THIS_MACHINE if is_local(wanted.master) else _ON_OTHERS),
        **wanted.options,
        **({} if wanted.submitted else _class_paths(jars, wanted)),
        "spark.master": wanted.master,
        **_OWN,
    }


def _class_paths(jars: Sequence[Path], wanted: SparkSettings) -> dict[str, str]:
    """The class paths: the connector, and the user's additions. The connector precedes Spark's own jars, because Spark's
    lz4-java has a vulnerability (CVE-2025-12183). Executors on other hosts load the connector from the driver.
    """
    names = {"spark.driver.extraClassPath": os.pathsep}
    if not is_local(wanted.master):
        names["spark.jars"] = ","
        if wrong := [jar for jar in jars if "," in str(jar)]:
            raise Misconfigured(
                Code.SPARK_NOT_STARTED,
                f"Spark reads a comma as the end of a jar's name: set ONEFOLD_CACHE to a folder that has none, unlike {wrong[0]}",
            )
    return {
        name: between.join(filter(None, [*map(str, jars), wanted.options.get(name, "")]))
        for name, between in names.items()
    }
