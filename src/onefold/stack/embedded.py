"""Jars, broker and database of the embedded stack. For tests, `infrastructure` runs broker and database in the foreground, and
`database` runs only the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from onefold.config import settings
from onefold.stack import data_directory, jars, java
from onefold.stack.broker import Broker
from onefold.stack.child import Child
from onefold.stack.ports import Ports, ReservedPorts, choose_ports, free_ports, of_stack
from onefold.stack.postgres import LOCALE, PostgresServer, check_account

Say = Callable[[str], None]


@dataclass(frozen=True)
class Parts:
    """The prepared parts of a stack, before a service starts."""

    broker: Broker
    database: PostgresServer
    java: java.Java
    spark_jars: list[Path]


@dataclass(frozen=True)
class Infrastructure:
    """A running broker and database, for tests, which may kill and restart `kafka` and `postgres`."""

    bootstrap_servers: str
    postgres_dsn: str
    kafka: Child
    postgres: Child
    broker: Broker
    java: java.Java
    spark_jars: list[Path]


@dataclass(frozen=True)
class Database:
    """A running database, for tests."""

    dsn: str
    child: Child


def default_cache() -> Path:
    """The cache folder in the settings, with the folder of jars."""
    return settings.load().cache


def prepare(
    home: Path,
    ports: Ports,
    cache: Path,
    say: Say = lambda text: None,
    *,
    with_database: bool = True,
    with_broker: bool = True,
) -> Parts:
    """Prepare a stack: download jars, format the broker, and create the database cluster during the download.

    Args:
        with_database, with_broker: False if the user has a server: nothing is created.
    """
    if with_database:
        check_account()  # before a long download
    found = java.locate(cache)
    database = PostgresServer(home / "postgres", ports.postgres)
    with ThreadPoolExecutor(max_workers=1) as pool:
        made = pool.submit(database.prepare if with_database else bool)
        jars.ensure("broker spark", cache, found.executable, _counting(say, "fetching jars"))
        broker_jars, spark_jars = (jars.ensure(group, cache, found.executable) for group in ("broker", "spark"))
        broker = Broker(home / "kafka", ports.kafka, ports.controller, found.executable, broker_jars)
        if with_broker:
            broker.prepare()
        made.result()
    return Parts(broker, database, found, spark_jars)


@contextmanager
def database(home: Path, programs: Path | None = None, locale: Sequence[str] = LOCALE) -> Iterator[Database]:
    """Run only a database as a child process until the block ends, with the data in `home` and the log in home/logs. Afterwards
    removes files outside of `home` (`PostgresServer.wipe`).

    Args:
        programs, locale: for another PostgreSQL than the wheel's (see `PostgresServer`).
    """
    check_account()
    data_directory.claim(home)
    with closing(ReservedPorts()) as keeping:
        (port,) = free_ports(1)
        keeping.keep([port])
        server = PostgresServer(home / "postgres", port, programs, locale)
        server.prepare()
        child = Child(server.service(home / "logs" / "postgres.log"))
        with _up([child]):
            yield Database(server.dsn, child)
        server.wipe()


@contextmanager
def infrastructure(
    home: Path, say: Say = lambda text: None, *, beside: Database | None = None
) -> Iterator[Infrastructure]:
    """Run broker and database as child processes until the block ends, with the data in `home` and the logs in home/logs. With
    a database in `beside`, run only the broker.
    """
    data_directory.claim(home)
    with closing(ReservedPorts()) as keeping:
        ports = choose_ports(home)
        keeping.keep(of_stack(home, {}))
        parts = prepare(home, ports, default_cache(), say, with_database=beside is None)
        kafka = Child(parts.broker.service(home / "logs" / "kafka.log"))
        if beside is None:
            found = Database(parts.database.dsn, Child(parts.database.service(home / "logs" / "postgres.log")))
        else:
            found = beside
        with _up([kafka] if beside else [found.child, kafka]):
            yield Infrastructure(
                parts.broker.bootstrap_servers,
                found.dsn,
                kafka,
                found.child,
                parts.broker,
                parts.java,
                parts.spark_jars,
            )


@contextmanager
def _up(children: Sequence[Child]) -> Iterator[None]:
    try:
        for child in children:
            child.start()
        for child in children:
            child.wait_ready()
        yield
    finally:
        for child in children:
            child.ask_to_stop()
        for child in children:
            child.stop()


def _counting(say: Say, what: str) -> jars.Progress:
    return lambda done, total: say(f"{what}: {done} of {total}")
