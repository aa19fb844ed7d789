"""Whether the servers answer, in one sentence when they do not. Their clients are imported when they are asked."""

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

# What `status` reads in the schema onefold.
_TABLES = ("", "ledger", "rejected", "pending", "done")
_ANSWER_S = 5.0  # one question; a healthy server answers in milliseconds


def kafka(settings: Settings) -> Trouble | None:
    """Why it cannot be used, None when it can. Raises UserError when none is set and the embedded stack is not running."""
    from onefold import kafka_client

    return kafka_client.trouble(settings.client())


def require_kafka(settings: Settings) -> None:
    """Raises UserError with the reason if Kafka cannot be used. Asks for half a second where a client would wait much longer."""
    if (trouble := kafka(settings)) is not None and not trouble.partial:
        raise UserError.of(trouble)


def hidden(missing: Mapping[str, Sequence[str]], settings: Settings) -> dict[str, str]:
    """Per pipeline one sentence, if Kafka hides some of the missing topics from this client. {} when Kafka is away.

    Args:
        missing: by pipeline the topics that a list of all topics has not.
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
    """Why Kafka has not answered a question, in one sentence. Takes seconds."""
    found = kafka(settings)
    return found.sentence if found else "Kafka has not answered in time, and lets a new client in"


def postgres(settings: Settings) -> tuple[Code, str] | None:
    """The same of PostgreSQL: the code, and a sentence with the reason that it or the network gives, or with the rights that
    are missing. None: it answers.
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
    """The rights of a reader that `status` uses."""
    from onefold import rights

    return [one for one in rights.of_engine(rights.Role.READER) if one.table in _TABLES]


def silent(dsn: str, error: Exception) -> str:
    """That PostgreSQL does not answer, or opens no session, and why."""
    from onefold import postgres as sessions

    reason = first_line(error).rpartition(" failed: ")[2].removeprefix("FATAL:").strip()
    if not reason.startswith("SSL"):
        reason = f"{reason[:1].lower()}{reason[1:]}"
    return f"PostgreSQL at {redaction.dsn(dsn)} {sessions.unopened(error)}: {reason}"
