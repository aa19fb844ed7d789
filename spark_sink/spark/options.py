"""What Spark and its JVM are told: one JVM for all domains, sized for a small machine. Nothing here imports PySpark."""

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from onefold import jvm
from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured

#: In the folder that Spark works in. For a developer: what matters to a user the sink says itself, in one sentence each.
LOG = "spark.log"
# Of each of that many files. A query that fails at every start writes stack traces all day.
_LOG_BYTES = 10_000_000
_LOG_FILES = 3


def _log4j(log: Path) -> str:
    """The configuration of log4j: bounded files. A path may have in it what log4j takes for a variable, or for a pattern."""
    path = str(log).replace("${", "$${")
    return jvm.as_properties(
        {
            "rootLogger.level": "error",
            "rootLogger.appenderRef.file.ref": "file",
            "appender.file.type": "RollingFile",
            "appender.file.name": "file",
            "appender.file.fileName": path,
            # Variables are looked for once more when a file is full.
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


_SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # a batch that is kept is read a few times and gone: to find out how it could be packed costs more than to write it
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.shuffle.partitions": "1",  # only reductions shuffle, and what is left of a batch by then is small
    # what is known after a shuffle changes nothing about plans this small, and to look costs time in every batch
    # (docs/decisions/0012)
    "spark.sql.adaptive.enabled": "false",
    # a line may have some MB, and a buffer holds no more than 2 GB
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024 * 1024),
    # how long an idle query waits before it asks Kafka again: by default an idle sink takes much more of a core
    "spark.sql.streaming.pollingDelay": "50ms",
    # Spark waits for ever by default, and a query is also stopped to be started again. What takes longest is a batch that
    # waits for Kafka (read.py).
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.sql.streaming.minBatchesToRetain": "5",
    # The checkpoint is a scratch pad: no checksum file beside each file, and no link to be looked for. Hadoop asks the
    # shell about links, by a process of its own, three for each file that Spark's default manager writes.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}

# The parallel collector needs the least processor time, and takes none of it beside the work (docs/decisions/0010).
JVM = ("-XX:+UseParallelGC",)


def options(jars: Sequence[Path], scratch: Path, flags: Sequence[str] = ()) -> dict[str, str]:
    """Spark's settings by name. `jars` are the Kafka connector and its needs, `scratch` a writable folder, `flags` more options
    of the JVM.

    Raises:
        Misconfigured: Spark cannot work in a folder of that name.
    """
    if "," in str(scratch):
        raise Misconfigured(
            Code.SPARK_NOT_STARTED,
            f"Spark cannot work in {scratch}: it reads a comma as the end of a folder's name; set ONEFOLD_HOME to a folder that "
            "has no comma in its path",
        )
    log4j = scratch / "log4j2.properties"
    if log4j.exists():  # else the folder is somebody else's so far
        shutil.rmtree(scratch / "tmp", ignore_errors=True)  # a JVM that was killed has left its libraries there
    scratch.mkdir(parents=True, exist_ok=True)
    log4j.write_text(_log4j(scratch / LOG), encoding="ascii")
    # in front of pyspark's own jars, by "spark.jars" they would come behind: its lz4-java has a known hole
    # (CVE-2025-12183)
    class_path = os.pathsep.join(map(str, jars))
    return {
        "spark.app.name": "onefold",
        "spark.driver.extraClassPath": class_path,
        "spark.executor.extraClassPath": class_path,
        "spark.driver.extraJavaOptions": " ".join(
            [
                f"-Dlog4j2.configurationFile={log4j.as_uri()}",
                *JVM,
                *map(shlex.quote, [*jvm.temporary(scratch / "tmp"), *flags]),
            ]
        ),
        "spark.local.dir": str(scratch / "local"),
        **_SETTINGS,
    }
