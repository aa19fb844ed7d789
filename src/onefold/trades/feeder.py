"""The producer of the evaluation: send a feed as fast as possible or at a steady rate, and report its sums.

Like the seed's producer, this producer uses no transactions, so a repeated message arrives twice. Only a backlog is a
transaction, to become visible all at once.
"""

import threading
import time
from collections.abc import Iterator
from itertools import islice

from confluent_kafka import Producer

from onefold import kafka_client, postgres
from onefold.operate.pacing import FAST, paced, produce
from onefold.workloads.shaping import Input
from onefold.workloads.trade_feed import Feed

# A long linger time makes few requests, and leaves CPU time for the measured services. The measured latency includes the wait.
_LINGER_MS = 50
# The broker's default maximum, because a backlog of millions is a single transaction.
_TRANSACTION_TIMEOUT_MS = 900_000
# People compare these sums with the table's sums on the dashboard, no faster than once a second.
_REPORT_EVERY_S = 1.0

_REPORT = """
INSERT INTO trades.truth (risk_type, region, trade_desk, value, trades, told_at)
VALUES (%s, %s, %s, %s * 0.000001, %s, clock_timestamp())
ON CONFLICT (risk_type, region, trade_desk)
DO UPDATE SET value = excluded.value, trades = excluded.trades, told_at = excluded.told_at
"""


class Feeder:
    """The producer of a feed, in parts. `sent` is the number of messages since the last start."""

    def __init__(self, client: dict[str, str], dsn: str, feed: Feed) -> None:
        self._dsn = dsn
        self._feed = feed
        self._messages: Iterator[Input] = iter(feed)
        self._settings: dict[str, str | int | bool] = {**client, **FAST, "linger.ms": _LINGER_MS}
        self._producer = kafka_client.producer(self._settings)
        self._held: Producer | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self.sent = 0

    def send(self, count: int) -> None:
        """Send the next `count` messages as fast as possible."""
        for message in islice(self._messages, count):
            produce(self._producer, *message)
        self._finish()

    def hold(self, count: int) -> None:
        """Send the next `count` messages in an open transaction, invisible to readers of committed records."""
        own, self._producer = self._producer, self._transactional()
        self._producer.init_transactions()
        self._producer.begin_transaction()
        self.send(count)
        self._held, self._producer = self._producer, own

    def release(self) -> None:
        """Commit the transaction of `hold`. On return, all its messages are readable."""
        assert self._held is not None, "hold() comes first"
        self._held.commit_transaction()
        # Kafka answers a commit before the markers are written. A new producer with the same transactional id waits for them.
        self._transactional().init_transactions()
        self._held = None

    def _transactional(self) -> Producer:
        identity = {"transactional.id": "onefold-bench-feeder", "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS}
        return kafka_client.producer({**self._settings, **identity})

    def start(self, count: int, rate: int) -> None:
        """Send the next `count` messages at `rate` a second, in a new thread."""
        self.sent = 0
        self._thread = threading.Thread(target=self._keep_pace, args=(count, rate), daemon=True)
        self._thread.start()

    def running(self) -> bool:
        """Whether the thread is still sending. Raises RuntimeError if the thread failed."""
        if self._failure is not None:
            raise RuntimeError(f"the producer failed: {self._failure}")
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Wait for the end of the thread."""
        if self._thread is not None:
            self._thread.join()

    def _keep_pace(self, count: int, rate: int) -> None:
        try:
            reported_at = time.monotonic()
            for message in paced(self._producer, islice(self._messages, count), rate):
                produce(self._producer, *message)
                self.sent += 1
                if self.sent % 1000 == 0 and time.monotonic() - reported_at > _REPORT_EVERY_S:
                    reported_at = time.monotonic()
                    self._report()
            self._finish()
        except BaseException as error:  # noqa: BLE001 - `running` reports the error in the main thread
            self._failure = error

    def _finish(self) -> None:
        if self._producer.flush(120):
            raise RuntimeError("Kafka did not take all messages within two minutes")
        self._report()

    def _report(self) -> None:
        rows = [(*leaf, value, trades) for leaf, (value, trades) in self._feed.truth().items()]
        with (
            postgres.connect(self._dsn, "onefold trades", autocommit=False) as connection,
            connection.cursor() as cursor,
        ):
            cursor.executemany(_REPORT, rows)
