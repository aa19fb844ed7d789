"""A session takes over at once from one that died in a transaction: the broker tells it to come back when that is aborted, and
librdkafka alone would let half a second pass.
"""

import pytest
from confluent_kafka import Producer

from onefold import kafka_client
from onefold.processor.core.errors import Fenced
from onefold.processor.io import kafka
from onefold.processor.io.kafka import KafkaSession
from tests.support.waiting import eventually
from tests.support.worlds import KafkaWorld

SHORT_S, LONG_S = 0.02, 20.0


class Asking(Producer):
    """Notes how long it was let ask for its epoch, each time."""

    asked: list[float]

    def init_transactions(self, *seconds: float) -> None:
        self.asked.extend(seconds)
        super().init_transactions(*seconds)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long each producer of a session asks."""
    monkeypatch.setattr(Asking, "asked", [], raising=False)
    monkeypatch.setattr(kafka_client, "_Producer", Asking)
    return Asking.asked


def opened(world: KafkaWorld) -> KafkaSession:
    session = KafkaSession(world.topology, 0, world.client)
    session.open()
    return session


def died(world: KafkaWorld) -> KafkaSession:
    """It has a transaction open."""
    session = opened(world)
    session.begin()
    session.produce([(world.output, 0, b"k", b"of the dead", [])])
    session._writer.flush(10)
    return session


def test_who_finds_a_transaction_open_asks_again_at_once(
    client: dict[str, str], asked: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is let in by one of the short calls, of which there are enough for any machine here."""
    world = KafkaWorld(client)
    dead = died(world)
    asked.clear()
    monkeypatch.setattr(kafka, "TAKING_OVER_S", (*[SHORT_S] * 500, LONG_S))
    session = opened(world)
    assert len(asked) > 1
    assert LONG_S not in asked
    session.begin()
    session.produce([(world.output, 0, b"k", b"of the one after", [])])
    session.commit()
    eventually(lambda: world.committed(world.output) == [b"of the one after"], 10, "only what was committed is read")
    with pytest.raises(Fenced):
        dead.commit()
    session.close()


def test_the_last_call_waits_as_long_as_the_broker_needs(
    client: dict[str, str], asked: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kafka.TAKING_OVER_S[-1] >= LONG_S, "as where a broker has only just started"
    world = KafkaWorld(client)
    dead = died(world)
    asked.clear()
    monkeypatch.setattr(kafka, "TAKING_OVER_S", (0.001, LONG_S))
    session = opened(world)
    assert asked == [0.001, LONG_S]
    session.begin()
    session.commit()
    session.close()
    with pytest.raises(Fenced):
        dead.commit()
