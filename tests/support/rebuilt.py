"""The runner's tables, for tests of rebuilds."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from onefold.operate.pipelines import found
from onefold.pipelines import PROJECT_FILE
from onefold.processor.core.topology import Topology
from onefold.verify.verifier import verify
from onefold.workloads import runner
from tests.support.processes import produce

TABLES = ("runner.messages", "runner.stats", "runner.tendency")


class Site:
    """The runner in a database of this test."""

    def __init__(self, topology: Topology, client: dict[str, str], dsn: str, home: Path) -> None:
        self.topology, self.client, self.dsn, self.home = topology, client, dsn, home

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query).fetchall()

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        return {table: self.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in TABLES}

    def send(self, seed: int, count: int = 300) -> None:
        produce(self.client, "runner.updates", [(one.key, one.value) for one in runner.generate(seed, count)])

    def valid(self) -> bool:
        verdict = verify("runner", client=self.client, dsn=self.dsn, timeout_s=0)
        assert verdict.outcome != "invalid", verdict.findings[:3]
        return verdict.outcome == "valid"

    def beside(self) -> list[str]:
        """Databases of rebuilds of this database."""
        asked = (
            "SELECT b.datname FROM pg_database AS b, pg_database AS live WHERE live.datname = current_database()"
            " AND starts_with(b.datname, 'onefold_rebuild_' || live.oid || '_')"
        )
        return [name for (name,) in self.rows(asked)]


@contextmanager
def events_arrive(site: Site) -> Iterator[None]:
    """Send events repeatedly during the block."""
    done, seeds = threading.Event(), iter(range(100, 10_000))

    def send() -> None:
        while not done.wait(0.1):
            site.send(next(seeds), 20)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def declare(folder: Path, name: str) -> None:
    """Declare a built-in pipeline with replicas in a project."""
    built_in = found()[name]
    named = {"topology": built_in.topology, "workload": built_in.workload}
    folders = {"contracts": str(built_in.contracts), "sql": str(built_in.sql)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**named, **folders}.items()]
    declared = [
        f"[tool.onefold.pipelines.{name}]",
        *lines,
        f"kafka_only = {json.dumps(built_in.kafka_only)}",
        "replicas = 2",
    ]
    (folder / PROJECT_FILE).write_text("\n".join(["[tool.onefold]", "packages = []", *declared, ""]), encoding="utf-8")
