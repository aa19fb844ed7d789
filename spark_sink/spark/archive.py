"""Which archive of classes the sink's JVM has."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from onefold import class_archive
from onefold.spark_sink.spark.options import JVM

_FOLDER = "classes"


def place(cache: Path, jars: Sequence[Path], java_home: str) -> Path | None:
    """Where in `cache` the archive for this Java, this Spark and these jars of the Kafka connector is, or would be; None for a
    Java that makes none."""
    spark = importlib.util.find_spec("pyspark")
    folders = spark.submodule_search_locations if spark is not None else None
    own = sorted(path for folder in folders or () for path in (Path(folder) / "jars").glob("*.jar"))
    return class_archive.place(cache / _FOLDER, [*jars, *own], Path(java_home), JVM)
