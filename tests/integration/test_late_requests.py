"""R1: a request to end a transaction that reaches the broker after the next transaction has begun.

librdkafka does not raise the producer's epoch with every transaction (KIP-890), so the broker cannot tell such a request
from one for the transaction that is open now. The session's defence is to re-initialise its producer after any sign of a request
that was sent twice.
"""

import pytest

from onefold.processor.io.kafka import KafkaSession
from tests.support.proxy import END_TXN, KafkaProxy
from tests.support.waiting import eventually
from tests.support.worlds import KafkaWorld

pytestmark = pytest.mark.promise("late-requests")


@pytest.mark.parametrize("defence", [True, False])
def test_a_late_commit_cannot_make_an_aborted_transaction_true(
    client: dict[str, str], kafka_proxy: KafkaProxy, defence: bool
) -> None:
    """With the defence off the aborted record is visible: the hazard is real, and this is what the defence is worth."""
    world = KafkaWorld(client)
    session = KafkaSession(
        world.topology, 0, {"bootstrap.servers": kafka_proxy.bootstrap_servers}, reinitialise_when_ambiguous=defence
    )
    session.open()
    session.begin()
    session.produce([(world.output, 0, b"k", b"first", [])])
    kafka_proxy.hold(END_TXN)
    session.commit()
    assert kafka_proxy.held.is_set()

    session.begin()
    session.produce([(world.output, 0, b"k", b"aborted", [])])
    session._writer.flush(10)
    kafka_proxy.release()
    session.abort()

    expected = [b"first"] if defence else [b"first", b"aborted"]
    assert defence == (session.reinitialised == 1)
    eventually(lambda: world.committed(world.output) == expected, 10, f"the output is {expected}")
    session.close()
