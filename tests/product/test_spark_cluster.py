"""The sink on a standalone cluster of Spark: no kill changes a table."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo, sql

from onefold.chaos.load import Load
from onefold.cli import submit
from onefold.config.settings import Settings
from onefold.exit_codes import UNAVAILABLE
from onefold.stack import jars, java
from onefold.stack.embedded import default_cache
from onefold.stack.ports import free_ports
from tests.support.command_line import Onefold
from tests.support.spark_cluster import NO_PYTHON, OPTIONS, PROTECTED, SPARK_HOME, SparkCluster, spark_cluster
from tests.support.told import asked, sums
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.long,  # 3 min
    pytest.mark.spark,
    pytest.mark.promise("spark-clusters"),
]

# JVMs on cores that others use too; a worker looks for a master again after 10 to 15 s, and the sink after 30.
GOES_ON_S = 240.0
LOOK_AGAIN_S = 0.5
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def spark_java() -> str:
    return str(java.locate(default_cache()).spark_home)


@pytest.fixture
def cluster(spark_java: str) -> Iterator[SparkCluster]:
    with spark_cluster(spark_java, PROTECTED) as made:
        yield made


@pytest.fixture
def onefold(tmp_path: Path, cluster: SparkCluster) -> Iterator[Onefold]:
    """Kafka and PostgreSQL, with settings for this cluster."""
    made = Onefold(tmp_path)
    made.environment |= {
        "ONEFOLD_SPARK_MASTER": cluster.master,
        "ONEFOLD_SPARK_OPTIONS": json.dumps(OPTIONS),
        "ONEFOLD_PARTITIONS": "2",
        "PYSPARK_PYTHON": NO_PYTHON,
    }
    try:
        made("up", "--only", "kafka,postgres")
        made("migrate")
        yield made
    finally:
        made("down", "--wipe", "--yes")


@contextmanager
def running(process: "subprocess.Popen[bytes]", log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A service, until the end of the block. If the test fails, with what it said last."""
    try:
        yield process
    except BaseException as error:
        error.add_note(f"exit code {process.poll()}, said last:\n{log.read_text(encoding='utf-8')[-3000:]}")
        raise
    finally:
        process.terminate()
        process.wait(60)


def submitted(onefold: Onefold, cluster: SparkCluster, pipelines: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    """The sink in the driver of spark-submit, with Spark's settings from spark-defaults.conf."""
    conf = onefold.home / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in {**OPTIONS, "spark.app.name": "submitted"}.items()),
        encoding="utf-8",
    )
    cache = default_cache()
    connector = jars.ensure("spark", cache, java.locate(cache).executable, lambda done, total: None)
    environment = {name: value for name, value in onefold.environment.items() if not name.startswith("ONEFOLD_SPARK_")}
    environment |= {"SPARK_CONF_DIR": str(conf), "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    spark_submit = [
        f"{SPARK_HOME}/bin/spark-submit",
        "--master",
        cluster.master,
        "--jars",
        ",".join(map(str, connector)),
    ]
    with (onefold.home / "sink.out").open("ab") as out:
        return subprocess.Popen(
            [*spark_submit, submit.__file__, *pipelines],
            env=environment, stdout=out, stderr=out, cwd=onefold.home,
        )  # fmt: skip


@pytest.mark.parametrize(
    "pipelines", [("trades",), pytest.param(("runner", "trades"), marks=pytest.mark.matrix)], ids=["one", "two"]
)
def test_kills_change_no_table(
    cluster: SparkCluster, onefold: Onefold, tmp_path: Path, pipelines: tuple[str, ...]
) -> None:
    """kill -9 of an executor, a worker, the master and the driver, and then the sink by spark-submit."""
    settings = Settings(bootstrap_servers=onefold.status()["bootstrap_servers"])
    with ExitStack() as services:
        for name in pipelines:
            process = onefold.start("process", name, "--processes", "1")
            services.enter_context(running(process, tmp_path / "process.out"))
        for name in pipelines:
            services.enter_context(Load(name, settings, 1))
        with running(onefold.start("sink", *pipelines), tmp_path / "sink.out") as sink:
            rows_go_on(onefold, pipelines, "the start")
            cluster.executors()[0].kill()
            rows_go_on(onefold, pipelines, "the kill of an executor")
            cluster.kill("worker-0")
            rows_go_on(onefold, pipelines, "the kill of a worker")
            before = {executor.pid for executor in cluster.executors()}
            cluster.kill("master")
            rows_go_on(onefold, pipelines, "the kill of the master")
            cluster.start_master()
            cluster.start_worker(0)
            eventually(
                lambda: [one for one in cluster.executors() if one.pid not in before],
                GOES_ON_S,
                "the master that has come back gives executors",
                LOOK_AGAIN_S,
            )
            rows_go_on(onefold, pipelines, "the return of the master")
            sink.kill()
            sink.wait(10)
        with running(submitted(onefold, cluster, pipelines), tmp_path / "sink.out"):
            rows_go_on(onefold, pipelines, "the kill of the driver")
            services.pop_all().close()
            onefold.drained(GOES_ON_S)
    for name in pipelines:
        assert f"{name}: valid" in onefold("verify", name)
    if len(pipelines) > 1:
        a_local_master_writes_the_same(onefold, pipelines, tmp_path)


def a_local_master_writes_the_same(onefold: Onefold, pipelines: tuple[str, ...], tmp_path: Path) -> None:
    """From the same topics."""
    local = database_beside(onefold)
    here = {"ONEFOLD_POSTGRES_DSN": local, "ONEFOLD_SPARK_MASTER": "local[*]", "ONEFOLD_SPARK_OPTIONS": "{}"}
    with running(onefold.start("sink", *pipelines, **here), tmp_path / "sink.out"):
        onefold.environment |= here
        onefold.drained(GOES_ON_S)
    assert checksums(local, pipelines) == checksums(onefold.dsn, pipelines)


@pytest.mark.matrix  # from day to day tests/integration/test_sink_on_a_cluster.py
def test_a_sink_without_executors_says_so_and_ends(cluster: SparkCluster, onefold: Onefold, tmp_path: Path) -> None:
    """In its status, its health and its metrics, and with the exit code of a service that is not there."""
    port, status = free_ports(1)[0], tmp_path / "status.json"
    told = {"ONEFOLD_METRICS_PORT": str(port), "ONEFOLD_STATUS_FILE": str(status)}
    with running(onefold.start("sink", "runner", **told), tmp_path / "sink.out") as sink:
        eventually(lambda: sums(port).get("onefold_sink_executors") == 2, GOES_ON_S, "two executors", LOOK_AGAIN_S)
        assert asked(port, "/healthz")[0] == 200
        for name in ("worker-0", "worker-1"):
            cluster.kill(name)
        sentence = f"Spark has had no executors at {cluster.master} for 30 s"
        eventually(lambda: sentence in asked(port, "/healthz")[1], GOES_ON_S, "its health says it", LOOK_AGAIN_S)
        assert asked(port, "/healthz")[0] == 503
        assert sums(port)["onefold_sink_executors"] == 0
        said = json.loads(status.read_text(encoding="utf-8"))
        assert (said["state"], said["detail"]) == ("waiting", sentence)
        assert sink.wait(PATIENCE_S + GOES_ON_S) == UNAVAILABLE
        assert f"gave up after {PATIENCE_S:.0f} s: {sentence}" in (tmp_path / "sink.out").read_text(encoding="utf-8")


def rows_go_on(onefold: Onefold, pipelines: tuple[str, ...], after: str) -> None:
    """Wait until each pipeline has rows that were written from now on, of records that were also sent from now on."""
    ((now, now_ms),) = onefold.rows("SELECT clock_timestamp(), (1000 * extract(epoch FROM clock_timestamp()))::bigint")
    asked_for = "SELECT count(DISTINCT sink) FROM onefold.batch WHERE landed_at > %s AND oldest_ms > %s"
    eventually(
        lambda: onefold.rows(asked_for, now, now_ms) == [(len(pipelines),)],
        GOES_ON_S,
        f"rows after {after}",
        LOOK_AGAIN_S,
    )


def database_beside(onefold: Onefold) -> str:
    """An empty database on the same server."""
    with psycopg.connect(onefold.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE beside TEMPLATE template0 ENCODING 'UTF8'")
    return conninfo.make_conninfo(onefold.dsn, dbname="beside")


_CHECKSUM = sql.SQL("""
    SELECT count(*), md5(string_agg(line, ',' ORDER BY line COLLATE "C"))
    FROM (SELECT (to_jsonb(t) - ARRAY['topic', 'partition', 'offset'])::text AS line FROM {} AS t) AS lines
""")


def checksums(dsn: str, pipelines: tuple[str, ...]) -> dict[str, tuple[int, str]]:
    """By table of the pipelines, the number of rows and a checksum, without what depends on how a sink cuts batches: the record
    that has last changed a sum, and when a batch was written.
    """
    found = {}
    with psycopg.connect(dsn) as connection:
        tables = connection.execute(
            "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema = ANY(%s) "
            "AND table_name <> 'landed'",
            (list(pipelines),),
        ).fetchall()
        for table in tables:
            (found[".".join(table)],) = connection.execute(_CHECKSUM.format(sql.Identifier(*table))).fetchall()
    return found
