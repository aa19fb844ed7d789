"""The embedded stack put together: ports, jars, broker and database. `infrastructure` runs the two in the foreground
for tests.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import platformdirs

from onefold.operate import private, state
from onefold.operate.errors import UserError
from onefold.stack import jars, java, warm
from onefold.stack.broker import Broker
from onefold.stack.child import Child
from onefold.stack.postgres import Postgres

# Below the range from which Linux takes ports for outgoing connections (32768 and up): such a port could be taken by any
# connection in the seconds in which a killed service starts again.
PORTS = range(21000, 32000)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Ports:
    """The ports of a stack, on loopback. Their file has no version while it is of the first: 0.1.0 would forget the ports
    of a file with a field that it does not know.
    """

    kafka: int
    controller: int
    postgres: int
    dashboard: int = 0  # in files of an older Onefold there is none


@dataclass(frozen=True)
class Parts:
    """Everything that exists before a service starts."""

    broker: Broker
    database: Postgres
    java: java.Java
    spark_jars: list[Path]


@dataclass(frozen=True)
class Infrastructure:
    """A running broker and database, for tests. `kafka` and `postgres` can be killed and started again."""

    bootstrap_servers: str
    postgres_dsn: str
    kafka: Child
    postgres: Child
    broker: Broker
    java: java.Java
    spark_jars: list[Path]


def default_cache() -> Path:
    """The per-user folder of jars: ONEFOLD_CACHE, else the platform's cache folder."""
    return Path(os.environ.get("ONEFOLD_CACHE") or platformdirs.user_cache_path("onefold"))


def choose_ports(home: Path, kafka: int = 0, postgres: int = 0, dashboard: int = 0) -> Ports:
    """The ports of the stack in `home`: those asked for, else those of last time where they are free, else free ones.

    Raises UserError when a port that was asked for is taken, or a newer Onefold chose last time.
    """
    file = home / "run" / "ports.json"
    found = state.load(file)
    last = Ports(**{one.name: found.get(one.name, 0) for one in fields(Ports)})
    fresh = iter(free_ports(len(fields(Ports))))
    chosen = Ports(
        _asked_for(kafka, "ONEFOLD_KAFKA_PORT") or if_free(last.kafka) or next(fresh),
        if_free(last.controller) or next(fresh),
        _asked_for(postgres, "ONEFOLD_POSTGRES_PORT") or if_free(last.postgres) or next(fresh),
        _asked_for(dashboard, "ONEFOLD_DASHBOARD_PORT") or if_free(last.dashboard) or next(fresh),
    )
    state.write(file, vars(chosen))
    return chosen


def free_ports(count: int) -> list[int]:
    """Ports on loopback that are free now, all different."""
    held: list[socket.socket] = []
    try:
        for port in random.sample(PORTS, len(PORTS)):
            try:
                held.append(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            if len(held) == count:
                return [found.getsockname()[1] for found in held]
        raise UserError("no free ports are left on 127.0.0.1", "Set ONEFOLD_KAFKA_PORT and ONEFOLD_POSTGRES_PORT.")
    finally:
        for found in held:
            found.close()


def prepare(home: Path, ports: Ports, cache: Path, say: Say = lambda text: None) -> Parts:
    """Makes what must exist before services start: jars, a formatted broker, a database cluster (while the jars
    arrive).
    """
    found = java.locate(cache)
    database = Postgres(home / "postgres", ports.postgres)
    with ThreadPoolExecutor(max_workers=1) as pool:
        made = pool.submit(database.prepare)
        broker_jars = jars.ensure("broker", cache, found.executable, _counting(say, "fetching Kafka's jars"))
        spark_jars = jars.ensure("spark", cache, found.executable, _counting(say, "fetching Spark's jars"))
        classes = warm.place(cache, broker_jars, found.executable)
        broker = Broker(home / "kafka", ports.kafka, ports.controller, found.executable, broker_jars, archive=classes)
        broker.prepare()
        made.result()
    return Parts(broker, database, found, spark_jars)


@contextmanager
def infrastructure(home: Path, say: Say = lambda text: None) -> Iterator[Infrastructure]:
    """Runs broker and database as children of this process until the block ends, with their data in `home` and logs
    in home/logs.
    """
    private.secure(home)
    parts = prepare(home, choose_ports(home), default_cache(), say)
    kafka = Child(parts.broker.service(home / "logs" / "kafka.log"))
    postgres = Child(parts.database.service(home / "logs" / "postgres.log"))
    children: Sequence[Child] = (postgres, kafka)
    try:
        for child in children:
            child.start()
        for child in children:
            child.wait_ready()
        yield Infrastructure(
            parts.broker.bootstrap_servers,
            parts.database.dsn,
            kafka,
            postgres,
            parts.broker,
            parts.java,
            parts.spark_jars,
        )
    finally:
        for child in children:
            child.ask_to_stop()
        for child in children:
            child.stop()


def _counting(say: Say, what: str) -> jars.Progress:
    return lambda done, total: say(f"{what}: {done} of {total}")


def if_free(port: int) -> int:
    """The port, when it can be listened on; else 0."""
    if not port:
        return 0
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return 0
    return port


def _asked_for(port: int, variable: str) -> int:
    if port and not if_free(port):
        raise UserError(
            f"{variable} asks for port {port}, which another program has", "Choose another port, or 0 to pick one."
        )
    return port
