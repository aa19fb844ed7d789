"""A sink that begins to read the decision log, on a real PostgreSQL."""

from collections.abc import Iterator

import pytest

from onefold.spark_sink.contracts import ENGINE_SQL
from onefold.spark_sink.errors import Refused
from onefold.spark_sink.landing import identity, ledger
from onefold.spark_sink.landing.ledger import Position
from onefold.spark_sink.landing.protocols import Reach
from onefold.spark_sink.postgres.connection import Connection, connect
from onefold.spark_sink.postgres.schema import ENGINE, migrate
from tests.sink.test_identity import Kafka

NAME, LOG, OUTPUT = "made_up", "made_up.decisions", "made_up.notes"


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    migrate(database, ENGINE, ENGINE_SQL)
    made = connect(database, "me")
    yield made
    made.close()


def topics(start: int = 0) -> Kafka:
    return Kafka({LOG: "id-log", OUTPUT: "id-1"}, {(LOG, 0): Reach(start, 9), (LOG, 1): Reach(start, 0)})


def test_the_first_sink_that_reads_the_log_takes_the_ledger_for_it(connection: Connection) -> None:
    """A position of an output topic goes, where nothing of that topic was written."""
    ledger.open_partition(connection, NAME, (OUTPUT, 0), 2, "id-1", "me")
    identity.choose_source(connection, NAME, "me", topics(), decided=True)
    opened = {(LOG, 0): Position(0, "id-log", None), (LOG, 1): Position(0, "id-log", None)}
    assert ledger.positions(connection, NAME) == opened
    start = dict.fromkeys(opened, 0)
    assert identity.decided_at(connection, NAME, topics(), start) == (start, dict.fromkeys(opened))
    with pytest.raises(Refused, match=r"are filled from made_up\.decisions"):
        identity.choose_source(connection, NAME, "me", topics(), decided=False)


def test_a_log_without_its_beginning_is_refused(connection: Connection) -> None:
    with pytest.raises(Refused, match=r"made_up\.decisions/0 begins at offset 3"):
        identity.choose_source(connection, NAME, "me", topics(3), decided=True)
    assert ledger.positions(connection, NAME) == {}
