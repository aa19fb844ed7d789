"""The one error that a user is meant to see: a sentence that says what is wrong, and a hint that says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onefold.error_codes import Code, CodedError
from onefold.error_codes import first_line as first_line
from onefold.exit_codes import FAILED, REFUSED, UNAVAILABLE, USAGE
from onefold.processor.core.errors import ProcessorError

if TYPE_CHECKING:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from onefold.kafka_client import Trouble

SEE_STATUS = "See whether it runs with `onefold status`."


class UserError(CodedError):
    """Something that the user can put right."""

    def __init__(self, code: Code, message: str, hint: str = "", exit_code: int = FAILED) -> None:
        super().__init__(code, message)
        self.hint = hint
        self.exit_code = exit_code

    @classmethod
    def of(cls, trouble: Trouble) -> UserError:
        """Kafka cannot be used: 3 where a person has to mend something, 69 where something is not there."""
        return cls(trouble.code, trouble.sentence, trouble.remedy, trouble.exit_code)


def of_postgres(error: Exception, sentence: str, hint: str = "") -> CodedError:
    """What a command says when PostgreSQL has not done something: 69 where it does not answer, 3 where it refuses the
    login or a right, 1 where it refuses something else. An `Unfit` says it by itself.

    Args:
        sentence: what was not done; the first line of `error` follows.
    """
    from psycopg.errors import InsufficientPrivilege  # most commands need no client of PostgreSQL

    from onefold.postgres import NoLogin

    if isinstance(error, NoLogin):
        return UserError(error.code, f"{sentence}: {error}", error.hint, error.exit_code)
    if isinstance(error, CodedError):
        return error
    if isinstance(error, InsufficientPrivilege):
        remedy = "`onefold grants` prints the SQL that gives each role its rights."
        return UserError(Code.POSTGRES_RIGHT, f"{sentence}: {first_line(error)}", f"{hint} {remedy}".strip(), REFUSED)
    code, exit_code = (Code.POSTGRES_SILENT, UNAVAILABLE) if is_silent(error) else (Code.POSTGRES_REFUSES, FAILED)
    return UserError(getattr(error, "code", code), f"{sentence}: {first_line(error)}", hint, exit_code)


# The server stops (57P01, 57P02), starts (57P03) or has ended an idle session (57P05); class 08 is a lost connection.
_COMES_BACK = ("57P01", "57P02", "57P03", "57P05", "08")


def is_silent(error: Exception) -> bool:
    """Whether PostgreSQL does not answer. An error of a running server has a SQLSTATE: a right that is missing, or a time-out."""
    from psycopg import OperationalError  # most commands need no client of PostgreSQL

    from onefold.postgres import NoLogin

    if isinstance(error, NoLogin):
        return False
    sqlstate = getattr(error, "sqlstate", None) or ""
    return isinstance(error, OperationalError) and (not sqlstate or sqlstate.startswith(_COMES_BACK))


def of_processor(error: ProcessorError, what: str = "") -> UserError:
    """What a command says of an error of the processor's clients, and ends with.

    Args:
        what: has failed, as the sentence's beginning.
    """
    sentence = f"{what}: {error}" if what else str(error)
    return UserError(error.code, sentence, "" if error.exit_code in (USAGE, REFUSED) else SEE_STATUS, error.exit_code)


def of_kafka(error: KafkaException, what: str, client: AdminClient | Mapping[str, Any]) -> UserError:
    """The error of a command whose call to Kafka failed: why the client can use no broker, else Kafka's own words.

    Args:
        what: has failed, as the sentence's beginning.
        client: or its settings.
    """
    from onefold import kafka_client
    from onefold.processor.io.kafka_errors import again_or_never

    if found := kafka_client.explain(error.args[0], client):
        return UserError.of(found)
    return of_processor(again_or_never(error.args[0], what))
