"""The settings of Spark: what the user may set, what is Onefold's own, and what no other process may read."""

import json
import os
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onefold.config import setting_sources, settings
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured
from onefold.spark_sink.spark import session
from onefold.spark_sink.spark.options import (
    SparkSettings,
    check_submitted,
    hosts,
    is_local,
    options,
    unprotected,
)
from onefold.stack.jars import LOCK_FILE, read_lock
from tests.support.coded import raises

CLUSTER = "spark://10.0.0.5:7077"
JARS = [Path("/cache/kafka.jar"), Path("/cache/avro.jar")]


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[3]",
        "local[*,4]",
        CLUSTER,
        "spark://a:7077,b:7077",
        "k8s://https://10.0.0.1:6443",
        "yarn",
    ],
)
def test_a_master_is_taken_as_spark_writes_it(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_SPARK_MASTER", master)
    assert settings.load().spark_master == master
    assert is_local(master) == master.startswith("local")


@pytest.mark.parametrize(
    "master", ["local[0]", "local[2,0]", "spark://a", "spark://a,b:1", "mesos://a:1", "localhost:7077"]
)
def test_what_is_no_master_is_refused(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_SPARK_MASTER", master)
    with raises(UserError, Code.SETTING_WRONG, "is no master: give local[*]"):
        settings.load()


def test_an_empty_master_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_SPARK_MASTER", "")
    assert settings.load().spark_master == "local[*]"


def test_a_jar_with_a_comma_in_its_path_is_refused_on_a_cluster(tmp_path: Path) -> None:
    """Spark would take it for two."""
    jars = [Path("/a,b/kafka.jar")]
    assert "spark.jars" not in options(jars, tmp_path)
    with raises(Misconfigured, Code.SPARK_NOT_STARTED, "/a,b/kafka.jar"):
        options(jars, tmp_path, wanted=SparkSettings(CLUSTER))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("spark.sql.decimalOperations.allowPrecisionLoss", "is Onefold's own, and cannot be set"),
        ("spark.sql.session.timeZone", "is Onefold's own, and cannot be set"),
        ("spark.sql.ansi.enabled", "is Onefold's own, and cannot be set"),
        ("spark.sql.legacy.timeParserPolicy", "is Onefold's own, and cannot be set"),
        ("spark.remote", "is Onefold's own, and cannot be set"),
        ("spark.master", "has a variable of its own: ONEFOLD_SPARK_MASTER"),
        ("executor.memory", "is no setting of Spark"),
    ],
)
def test_onefolds_own_settings_of_spark_are_refused_by_name(
    name: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence, which repeats no value."""
    monkeypatch.setenv("ONEFOLD_SPARK_OPTIONS", json.dumps({"spark.executor.memory": "2g", name: "hush"}))
    with raises(UserError, Code.SETTING_WRONG, "ONEFOLD_SPARK_OPTIONS cannot be used: ") as caught:
        settings.load()
    assert f"{name!r} {says}" in caught.value.message
    assert "hush" not in caught.value.as_text()


def test_a_secret_of_spark_is_not_shown() -> None:
    java = "-Djavax.net.ssl.keyStorePassword=hush"
    options = {
        "spark.authenticate.secret": "hush",
        "spark.driver.extraJavaOptions": java,
        "spark.executor.memory": "2g",
    }
    given = Settings(spark_options=options)
    assert setting_sources.shown("spark_options", given.spark_options) == {
        "spark.authenticate.secret": "***",
        "spark.driver.extraJavaOptions": "***",
        "spark.executor.memory": "2g",
    }


def test_a_local_master_is_reached_from_this_machine_alone(tmp_path: Path) -> None:
    made = options(JARS, tmp_path)
    assert made["spark.master"] == "local[*]"
    assert (made["spark.driver.host"], made["spark.driver.bindAddress"]) == ("127.0.0.1", "127.0.0.1")
    assert made["spark.driver.extraClassPath"] == "/cache/kafka.jar:/cache/avro.jar"
    assert not [name for name in made if name.startswith(("spark.executor", "spark.jars"))]


def test_executors_of_a_cluster_get_the_connector_and_the_drivers_collector(tmp_path: Path) -> None:
    """And nothing that lies on the driver's machine: no path, no host, no variable, no Python."""
    made = options(JARS, tmp_path, wanted=SparkSettings(CLUSTER))
    assert made["spark.master"] == CLUSTER
    assert made["spark.jars"] == "/cache/kafka.jar,/cache/avro.jar"
    assert {name: value for name, value in made.items() if name.startswith("spark.executor")} == {
        "spark.executor.defaultJavaOptions": "-XX:+UseParallelGC",
        "spark.executor.userClassPathFirst": "true",
    }
    assert "-XX:+UseParallelGC" in made["spark.driver.defaultJavaOptions"]
    assert "spark.driver.host" not in made


def test_settings_of_the_user_win_and_add_to_class_paths(tmp_path: Path) -> None:
    given = {"spark.driver.memory": "4g", "spark.jars": "/a.jar", "spark.driver.extraClassPath": "/b.jar"}
    made = options(JARS, tmp_path, wanted=SparkSettings(CLUSTER, given))
    assert made["spark.driver.memory"] == "4g"
    assert made["spark.jars"] == "/cache/kafka.jar,/cache/avro.jar,/a.jar"
    assert made["spark.driver.extraClassPath"] == "/cache/kafka.jar:/cache/avro.jar:/b.jar"


def test_spark_submit_brings_its_own_class_path(tmp_path: Path) -> None:
    made = options([], tmp_path, wanted=SparkSettings(submitted=True))
    assert not [name for name in made if name in ("spark.jars", "spark.driver.extraClassPath")]


@pytest.mark.parametrize(
    ("name", "value"),
    [("spark.sql.session.timeZone", "Europe/Berlin"), ("spark.sql.legacy.timeParserPolicy", "LEGACY")],
)
def test_what_spark_submit_changes_of_the_rows_is_refused(name: str, value: str) -> None:
    check_submitted({"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "TRUE", "spark.master": CLUSTER})
    with raises(Misconfigured, Code.SETTING_WRONG, f"the Spark setting {name!r} is Onefold's own"):
        check_submitted({name: value})


@pytest.mark.parametrize(
    ("master", "found"),
    [
        ("local[*]", []),
        ("yarn", []),
        ("k8s://https://10.0.0.1:6443", []),
        ("spark://a:7077", [("a", 7077)]),
        ("spark://a:7077,[::1]:7078", [("a", 7077), ("::1", 7078)]),
    ],
)
def test_the_masters_of_a_standalone_cluster_are_known(master: str, found: list[tuple[str, int]]) -> None:
    assert hosts(master) == found


@pytest.mark.parametrize(
    ("master", "on", "missing"),
    [
        (CLUSTER, [], "spark.authenticate and spark.network.crypto.enabled"),
        ("yarn", ["spark.network.crypto.enabled"], "spark.authenticate"),
        (CLUSTER, ["spark.authenticate"], "spark.network.crypto.enabled"),
        (CLUSTER, ["spark.authenticate", "spark.ssl.rpc.enabled"], ""),
        ("spark://127.0.0.1:7077,localhost:7077", [], ""),
        ("local[2]", [], ""),
    ],
)
def test_open_connections_beyond_this_machine_are_named(master: str, on: list[str], missing: str) -> None:
    said = unprotected({"spark.master": master, **dict.fromkeys(on, "true")})
    assert said.endswith(f"Set {missing} to true") if missing else said == ""


def test_no_secret_of_spark_is_an_argument_of_a_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, str] = {}

    def launch(conf: Any, *arguments: Any) -> Any:
        seen.update(conf.getAll())
        raise FileNotFoundError(2, "No such file or directory", "spark-submit")

    monkeypatch.setattr(session, "launch_gateway", launch)
    monkeypatch.setattr(os, "environ", {**os.environ})
    given = {"spark.authenticate.secret": "hush", "spark.executor.memory": "2g"}
    with raises(Misconfigured, Code.SPARK_NOT_STARTED):
        session.Driver([], "/opt/java", tmp_path, SparkSettings(CLUSTER, given)).start()
    assert "hush" not in str(seen)
    assert seen["spark.executor.memory"] == "2g"


def test_the_connector_that_is_named_is_the_pinned_one() -> None:
    """Of the line of the Spark that the sink brings."""
    pinned = {f"{jar.organisation}:{jar.name}": jar.version for jar in read_lock(LOCK_FILE.read_text(encoding="utf-8"))}
    assert {pinned[package] for package in session._CONNECTOR} == {session._VERSION}
    assert session._VERSION.startswith(f"{session._SPARK}.")
    assert metadata.version("pyspark").startswith(f"{session._SPARK}.")


class _Gateway:
    """The JVM of spark-submit, with these files on its class path."""

    def __init__(self, *files: str) -> None:
        loader = SimpleNamespace(getResource=lambda name: name if name in files else None)
        thread = SimpleNamespace(getContextClassLoader=lambda: loader)
        self.jvm = SimpleNamespace(Thread=SimpleNamespace(currentThread=lambda: thread))


def test_spark_submit_without_the_connector_is_refused_with_the_packages() -> None:
    """And so is a Spark of another line."""
    kafka, avro = session._CONNECTOR.values()
    session._check_submitted(cast("Any", _Gateway(kafka, avro)))
    with raises(
        Misconfigured, Code.SPARK_NOT_STARTED, "spark-submit has no org.apache.spark:spark-avro_2.13: add --packages"
    ):
        session._check_submitted(cast("Any", _Gateway(kafka)))


class _Conf:
    """A SparkConf in the JVM of spark-submit."""

    def __init__(self, given: dict[str, str]) -> None:
        self.set, self.get, self.contains = given.__setitem__, given.__getitem__, given.__contains__
        self.getAll = lambda: [SimpleNamespace(_1=partial(str, name), _2=partial(str, given[name])) for name in given]


def test_what_spark_submit_has_set_stays_and_what_is_missing_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its master: no address of this machine for executors elsewhere."""
    given = {"spark.master": CLUSTER, "spark.app.name": "theirs", "spark.executor.memory": "4g"}
    gateway: Any = _Gateway(*session._CONNECTOR.values())
    gateway.jvm.SparkConf = lambda load_defaults: _Conf(given)
    monkeypatch.setattr(session, "_gateway", lambda arguments: gateway)
    options_of_ours = {"spark.executor.memory": "1g", "spark.executor.cores": "2"}
    session.Driver([], "", tmp_path, SparkSettings("local[*]", options_of_ours, submitted=True))._submitted()
    assert (given["spark.master"], given["spark.app.name"], given["spark.executor.memory"]) == (CLUSTER, "theirs", "4g")
    assert given["spark.executor.cores"] == "2"
    assert given["spark.sql.session.timeZone"] == "UTC"
    assert given["spark.executor.userClassPathFirst"] == "true"
    assert not given.keys() & {
        "spark.driver.host",
        "spark.driver.bindAddress",
        "spark.jars",
        "spark.driver.extraClassPath",
    }
    given["spark.sql.session.timeZone"] = "Europe/Berlin"
    with raises(Misconfigured, Code.SETTING_WRONG, "is Onefold's own: leave it out or set UTC"):
        session.Driver([], "", tmp_path, SparkSettings(submitted=True))._submitted()


def test_a_spark_of_another_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.6")
    with raises(Misconfigured, Code.SPARK_NOT_STARTED, "the sink needs Spark 4.0, and spark-submit is of Spark 3.5.6"):
        session._check_submitted(cast("Any", _Gateway()))
