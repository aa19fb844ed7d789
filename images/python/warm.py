"""Has Spark do once what the sink does, so that the JVM writes down which classes that takes: `warm.py <archive>`.

Run while the sink's image is built. A JVM that starts with the archive (SPARK_SUBMIT_OPTS in the image) maps these classes
instead of finding, reading and checking them one by one. An archive that does not fit is ignored by the JVM: nothing but time
depends on it.
"""

import os
import sys
import tempfile
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from onefold.operate import pipelines
from onefold.operate.settings import load
from onefold.pipelines import Pipeline
from onefold.spark_sink.contracts import load_domain
from onefold.spark_sink.spark import read, reduce
from onefold.spark_sink.spark.session import spark_session
from onefold.stack import jars, java

KAFKAS_COLUMNS = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
NOBODY = "127.0.0.1:9"  # no broker is needed to load the classes of a client


def main(archive: str) -> None:
    """Streams a few records of every domain through the sink's own decoding, and ends the JVM in an orderly way."""
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable"
    cache = load().cache
    found = java.locate(cache)
    with tempfile.TemporaryDirectory() as folder:
        spark = spark_session(jars.ensure("spark", cache, found.executable), str(found.spark_home), Path(folder))
        for pipeline in pipelines.found().pipelines.values():
            _stream(spark, pipeline, Path(folder) / pipeline.name)
            _ask_nobody(spark)
        gateway = spark.sparkContext._gateway.proc
        spark.stop()
        gateway.stdin.close()
        gateway.wait()
    if not Path(archive).exists():
        sys.exit("warm.py: the JVM wrote no archive")


def _stream(spark: SparkSession, pipeline: Pipeline, checkpoint: Path) -> None:
    domain = load_domain(pipeline.name, pipeline.contracts, pipeline.sql)
    ticks = spark.readStream.format("rate").load()
    topic = next(iter(domain.contracts))
    source = ticks.selectExpr(
        "encode(string(value), 'UTF-8') key",
        "encode(string(value), 'UTF-8') value",
        f"'{topic}' topic",
        "0 partition",
        "value offset",
        "timestamp",
    )

    reduced = reduce.reducer(domain, {**domain.targets, **reduce.targets(spark, domain, pipeline.sql)})

    def on_batch(frame: DataFrame, number: int) -> None:
        reduced(frame).toArrow()

    query = (
        read.lines(source, domain)
        .writeStream.foreachBatch(on_batch)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    query.processAllAvailable()
    query.stop()


def _ask_nobody(spark: SparkSession) -> None:
    asked = spark.read.format("kafka").option("kafka.bootstrap.servers", NOBODY).option("subscribe", "nothing")
    try:
        asked.option("kafka.default.api.timeout.ms", "1500").option("kafka.request.timeout.ms", "1000").load().count()
    except (PySparkException, Py4JJavaError):
        return


if __name__ == "__main__":
    main(sys.argv[1])
