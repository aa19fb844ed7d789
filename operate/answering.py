"""Whether the servers answer, in one sentence when they do not. Their clients are imported when they are asked."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from typing import TYPE_CHECKING

from onefold.operate import hiding, positions
from onefold.operate.errors import first_line
from onefold.operate.settings import Settings

if TYPE_CHECKING:
    from onefold.kafka_client import Trouble


def kafka(settings: Settings) -> Trouble | None:
    """Why it cannot be used, None when it can. Raises UserError when none is set and the embedded stack is not running."""
    from onefold import kafka_client

    return kafka_client.trouble(settings.client())


def hidden(topics: Collection[str], settings: Settings) -> Trouble | None:
    """Whether Kafka hides some of these topics, which a list of all has not; None where they do not exist, or it is away."""
    from confluent_kafka import KafkaException

    from onefold import kafka_client

    client = kafka_client.admin(settings.client())
    try:
        found = kafka_client.undescribable(client, topics, positions.CALL_S)
    except KafkaException:
        return None
    return kafka_client.cannot_describe(client, found) if found else None


def postgres(settings: Settings) -> str:
    """The same of PostgreSQL, with the reason that it or the network gives."""
    import psycopg

    from onefold import postgres as sessions

    dsn = settings.postgres()
    try:
        with closing(sessions.connect(dsn, "onefold status", patience_s=positions.CALL_S)) as connection:
            connection.execute("SELECT 1")
    except sessions.Unfit as error:
        return str(error)
    except psycopg.Error as error:
        return silent(dsn, error)
    return ""


def silent(dsn: str, error: Exception) -> str:
    """That PostgreSQL does not answer, and why."""
    reason = first_line(error).rpartition(" failed: ")[2].removeprefix("FATAL:").strip()
    return f"PostgreSQL at {hiding.dsn(dsn)} does not answer: {reason[:1].lower()}{reason[1:]}"
