"""What the sink's Spark takes from the environment of its caller."""

import os
from pathlib import Path
from typing import Any

import pytest

from onefold.processor.core.errors import Misconfigured
from onefold.spark_sink.spark import session

# Of another Spark on the machine, as a notebook and the nodes of a cluster set them.
FOREIGN = {
    "SPARK_HOME": "/opt/spark-2",
    "SPARK_CONF_DIR": "/etc/spark/conf",
    "HADOOP_CONF_DIR": "/etc/hadoop/conf",
    "YARN_CONF_DIR": "/etc/hadoop/conf",
    "PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell",
    "SPARK_DIST_CLASSPATH": "/opt/hadoop/share/hadoop/common/*",
    "PYSPARK_GATEWAY_PORT": "9",
    "PYSPARK_GATEWAY_SECRET": "secret",
    "SPARK_REMOTE": "sc://spark.example:15002",
    "SPARK_API_MODE": "connect",
    "SPARK_CONNECT_MODE": "1",
    "SPARK_CONNECT_MODE_ENABLED": "1",
}


def test_another_spark_of_the_caller_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, **FOREIGN, "SPARK_LOCAL_IP": "127.0.0.1"})
    seen: dict[str, str] = {}

    def launch(*arguments: Any) -> Any:
        seen.update(os.environ)
        raise FileNotFoundError(2, "No such file or directory", "spark-submit")

    monkeypatch.setattr(session, "launch_gateway", launch)
    with pytest.raises(Misconfigured) as refused:
        session.Driver([], "/opt/java", tmp_path).start()
    assert seen.keys() & FOREIGN.keys() == set()
    assert (seen["SPARK_LOCAL_IP"], seen["JAVA_HOME"]) == ("127.0.0.1", "/opt/java")
    assert str(refused.value) == "Spark did not start: [Errno 2] No such file or directory: 'spark-submit'"
