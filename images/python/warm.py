"""Has Spark do once what the sink does, so that the JVM writes down which classes that takes: `warm.py <archive>`.

Run while the sink's image is built. A JVM that starts with the archive (SPARK_SUBMIT_OPTS in the image) maps these classes
instead of finding, reading and checking them one by one. An archive that does not fit is ignored by the JVM: nothing but time
depends on it.
"""

import sys
from pathlib import Path

from onefold.operate import pipelines
from onefold.operate.settings import load
from onefold.spark_sink.spark import warm
from onefold.stack import jars, java


def main(archive: str) -> None:
    """Streams a few records of every domain through the sink's own decoding, and ends the JVM in an orderly way."""
    cache = load().cache
    found = java.locate(cache)
    spark = jars.ensure("spark", cache, found.executable)
    if not warm.make(Path(archive), pipelines.found().pipelines.values(), spark, str(found.spark_home)):
        sys.exit("warm.py: the JVM wrote no archive")


if __name__ == "__main__":
    main(sys.argv[1])
