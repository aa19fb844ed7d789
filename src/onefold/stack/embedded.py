"""The embedded stack put together: jars, broker and database. `infrastructure` runs the two in the foreground for tests, and
`database` one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from onefold.config import settings
from onefold.stack import homes, jars, java
from onefold.stack.broker import Broker
from onefold.stack.child import Child
from onefold.stack.ports import Keeping, Ports, choose_ports, free_ports, of_stack
from onefold.stack.postgres import LOCALE, Postgres, check_account

Say = Callable[[str], None]


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


@dataclass(frozen=True)
class Database:
    """A running database, for tests."""

    dsn: str
    child: Child


def default_cache() -> Path:
    """The folder of jars, as the settings have it."""
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
    """Makes what must exist before services start: jars, a formatted broker, a database cluster (while the jars
    arrive). Where the user has a server, nothing is made in its place.
    """
    if with_database:
        check_account()  # before minutes of downloads
    found = java.locate(cache)
    database = Postgres(home / "postgres", ports.postgres)
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
    """Runs a database alone as a child of this process until the block ends, with its data in `home` and its log in
    home/logs. What it leaves outside of `home` (`Postgres.wipe`) is gone afterwards.

    Args:
        programs, locale: of another PostgreSQL than the wheel's (`Postgres`).
    """
    check_account()
    homes.claim(home)
    with closing(Keeping()) as keeping:
        (port,) = free_ports(1)
        keeping.keep([port])
        server = Postgres(home / "postgres", port, programs, locale)
        server.prepare()
        child = Child(server.service(home / "logs" / "postgres.log"))
        with _up([child]):
            yield Database(server.dsn, child)
        server.wipe()


@contextmanager
def infrastructure(
    home: Path, say: Say = lambda text: None, *, beside: Database | None = None
) -> Iterator[Infrastructure]:
    """Runs broker and database as children of this process until the block ends, with their data in `home` and logs
    in home/logs; the broker alone where there is a database `beside` it.
    """
    homes.claim(home)
    with closing(Keeping()) as keeping:
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
