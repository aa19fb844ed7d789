"""Check the servers, with a sentence for each fault. The servers' clients are imported only for a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING

from onefold.config import redaction
from onefold.config.errors import UserError, first_line
from onefold.config.settings import Settings
from onefold.error_codes import Code

if TYPE_CHECKING:
    from onefold.kafka_client import Trouble
    from onefold.rights import Right

# The tables of the schema onefold for `status`.
_TABLES = ("", "ledger", "rejected", "pending", "done")
_ANSWER_S = 5.0  # one query; a healthy server answers in milliseconds


def kafka(settings: Settings) -> Trouble | None:
    """Why Kafka cannot be used; None if usable. Raises UserError if no Kafka is set and the embedded stack is not running."""
    from onefold import kafka_client

    return kafka_client.trouble(settings.client())


def require_kafka(settings: Settings) -> None:
    """Raises UserError with the reason if Kafka cannot be used. The check takes a few seconds at most, less than the time-out
    of a client.
    """
    if (trouble := kafka(settings)) is not None and not trouble.partial:
        raise UserError.of(trouble)


def hidden(missing: Mapping[str, Sequence[str]], settings: Settings) -> dict[str, str]:
    """A sentence for each pipeline with missing topics, if Kafka hides the topics from the client. {} if Kafka is unreachable.

    Args:
        missing: by pipeline the topics that are absent from the list of all topics.
    """
    from confluent_kafka import KafkaException

    from onefold import kafka_client

    client = kafka_client.admin(settings.client())
    try:
        found = set(kafka_client.undescribable(client, chain.from_iterable(missing.values()), _ANSWER_S))
    except KafkaException:
        return {}
    of_each = {name: [topic for topic in topics if topic in found] for name, topics in missing.items()}
    return {name: kafka_client.cannot_describe(client, topics).sentence for name, topics in of_each.items() if topics}


def why_silent(settings: Settings) -> str:
    """Why Kafka has not answered a request, in one sentence. Takes seconds."""
    found = kafka(settings)
    return found.sentence if found else "Kafka has not answered in time, and lets a new client in"


def postgres(settings: Settings) -> tuple[Code, str] | None:
    """Why PostgreSQL cannot be used: a code, and a sentence with the reason of the server or network, or with the missing
    rights. None: usable.
    """
    import psycopg

    from onefold import postgres as sessions
    from onefold import rights

    dsn = settings.postgres()
    try:
        with closing(sessions.connect(dsn, "onefold status", patience_s=_ANSWER_S)) as connection:
            if lacks := rights.lacking(connection, _read()):
                return Code.POSTGRES_RIGHT, lacks
    except sessions.Unfit as error:
        return error.code, str(error)
    except psycopg.Error as error:
        return getattr(error, "code", Code.POSTGRES_SILENT), silent(dsn, error)
    return None


def _read() -> list[Right]:
    """The rights of a reader for `status`."""
    from onefold import rights

    return [one for one in rights.of_engine(rights.DatabaseRole.READER) if one.table in _TABLES]


def silent(dsn: str, error: Exception) -> str:
    """The sentence that PostgreSQL does not answer, or opens no session, with the reason."""
    from onefold import postgres as sessions

    reason = first_line(error).rpartition(" failed: ")[2].removeprefix("FATAL:").strip()
    if not reason.startswith("SSL"):
        reason = f"{reason[:1].lower()}{reason[1:]}"
    return f"PostgreSQL at {redaction.dsn(dsn)} {sessions.unopened(error)}: {reason}"
