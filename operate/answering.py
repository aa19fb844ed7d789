"""Whether the servers answer, in one sentence when they do not. Their clients are imported when they are asked."""

from __future__ import annotations

from contextlib import closing

from onefold.operate import hiding, positions
from onefold.operate.errors import first_line
from onefold.operate.settings import Settings


def kafka(settings: Settings) -> str:
    """Why it does not answer, "" when it does. Raises UserError when none is set and the embedded stack is not running."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient(positions.quiet(settings)).list_topics(timeout=positions.CALL_S)
    except KafkaException:
        # What librdkafka says of it is of its own parts; the reason, as a refused password, is in the broker's log.
        return f"Kafka at {hiding.address(settings.kafka())} does not answer"
    return ""


def postgres(settings: Settings) -> str:
    """The same of PostgreSQL, with the reason that it or the network gives."""
    import psycopg

    dsn = settings.postgres()
    try:
        with closing(psycopg.connect(dsn, connect_timeout=int(positions.CALL_S), autocommit=True)) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error as error:
        reason = first_line(error).rpartition(" failed: ")[2].removeprefix("FATAL:").strip()
        return f"PostgreSQL at {hiding.dsn(dsn)} does not answer: {reason[:1].lower()}{reason[1:]}"
    return ""
