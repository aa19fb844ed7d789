"""Has Spark do once what the sink does: so that the JVM writes down which classes that takes."""

import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from onefold import class_archive
from onefold.error_codes import Code
from onefold.pipelines import Pipeline
from onefold.spark_sink.contracts import Domain, load_domain
from onefold.spark_sink.errors import Misconfigured, Waiting
from onefold.spark_sink.spark import read, reduce, session

_NOBODY = "127.0.0.1:9"  # no broker is needed to load the classes of a client
_LOOK_S = 0.2
_BATCH_S = 120.0  # for the first batch of a pipeline, at the lowest priority; what has not come by then is left out
_EXIT_S = 300.0  # many times what it takes to write the archive at the lowest priority


def make(file: Path, pipelines: Iterable[Pipeline], jars: list[Path], java_home: str) -> bool:
    """Makes the archive `file`, see `class_archive.place`. Returns whether the JVM wrote one.

    Whatever ends it, the JVM is gone then: one that is left alone would go on writing.

    Raises:
        Misconfigured: Spark does not start with that Java.
        Waiting: the JVM takes too long to end.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=class_archive.DRAFTS, dir=file.parent) as folder:
        draft = Path(folder) / file.name
        try:
            _run(draft, pipelines, jars, java_home, Path(folder))
        finally:
            for child in psutil.Process().children(recursive=True):
                child.kill()
        if not draft.exists():
            return False
        class_archive.keep(draft, file)
    return True


def _run(draft: Path, pipelines: Iterable[Pipeline], jars: list[Path], java_home: str, scratch: Path) -> None:
    spark = session.start(jars, java_home, scratch, class_archive.records(draft))
    for pipeline in pipelines:
        exercise(spark, pipeline, scratch / pipeline.name)
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "the session has just been started"
    jvm = gateway.proc
    spark.stop()
    jvm.stdin.close()
    try:
        jvm.wait(_EXIT_S)
    except subprocess.TimeoutExpired:
        raise Waiting(Code.CLASSES_NOT_ARCHIVED, f"the JVM did not write its classes down in {_EXIT_S:.0f} s") from None


def exercise(spark: SparkSession, pipeline: Pipeline, checkpoint: Path) -> None:
    """Streams a few made-up records through the decoding, and the reductions, of the pipeline. One whose contracts or SQL are
    wrong is passed over.
    """
    try:
        domain = load_domain(pipeline.name, pipeline.contracts, pipeline.sql)
        targets = {**domain.targets, **reduce.targets(spark, domain, pipeline.sql)}
    except Misconfigured:
        return
    reduced = reduce.reducer(domain, targets)

    done = threading.Event()

    def on_batch(frame: DataFrame, number: int) -> None:
        if reduced(frame).toArrow().num_rows:
            done.set()

    query = (
        read.Lines(domain)(_ticks(spark, domain))
        .writeStream.foreachBatch(on_batch)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    # Not for all that is there: on a busy machine more is there after every batch.
    deadline = time.monotonic() + _BATCH_S
    while not done.wait(_LOOK_S) and query.isActive and time.monotonic() < deadline:
        pass
    query.stop()
    _ask_nobody(spark)


def _ticks(spark: SparkSession, domain: Domain) -> DataFrame:
    """In the shape of Kafka's reader."""
    return (
        spark.readStream.format("rate")
        .load()
        .selectExpr(
            "encode(string(value), 'UTF-8') key",
            "encode(string(value), 'UTF-8') value",
            f"'{next(iter(domain.contracts))}' topic",
            "0 partition",
            "value offset",
            "timestamp",
        )
    )


def _ask_nobody(spark: SparkSession) -> None:
    asked = spark.read.format("kafka").option("kafka.bootstrap.servers", _NOBODY).option("subscribe", "nothing")
    try:
        asked.option("kafka.default.api.timeout.ms", "1500").option("kafka.request.timeout.ms", "1000").load().count()
    except (PySparkException, Py4JJavaError):
        return
