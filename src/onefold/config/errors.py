"""The error for users: a sentence with the fault, and a hint with the remedy."""

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
    """A fault that the user can correct. `exit_code` is the command's exit code."""

    def __init__(self, code: Code, message: str, hint: str = "", exit_code: int = FAILED) -> None:
        super().__init__(code, message)
        self.hint = hint
        self.exit_code = exit_code

    @classmethod
    def of(cls, trouble: Trouble) -> UserError:
        """The error for an unusable Kafka: exit code 3 if a person must correct the fault, 69 if Kafka is unavailable."""
        return cls(trouble.code, trouble.sentence, trouble.remedy, trouble.exit_code)


def of_postgres(error: Exception, sentence: str, hint: str = "") -> CodedError:
    """The error of a command for a failed call to PostgreSQL. A `CodedError`, such as `Unfit`, is returned unchanged.

    Exit code 69 if PostgreSQL does not answer, 3 if a login or a privilege is refused, 1 for every other error.

    Args:
        sentence: The failed action. The first line of `error` follows.
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


# SQLSTATEs of a server that stops (57P01, 57P02), starts (57P03) or ended an idle session (57P05), and of a lost connection
# (class 08).
_COMES_BACK = ("57P01", "57P02", "57P03", "57P05", "08")


def is_silent(error: Exception) -> bool:
    """Whether PostgreSQL does not answer.

    A running server's errors have a SQLSTATE, for instance for a missing privilege or a time-out.
    """
    from psycopg import OperationalError  # most commands need no client of PostgreSQL

    from onefold.postgres import NoLogin

    if isinstance(error, NoLogin):
        return False
    sqlstate = getattr(error, "sqlstate", None) or ""
    return isinstance(error, OperationalError) and (not sqlstate or sqlstate.startswith(_COMES_BACK))


def of_processor(error: ProcessorError, what: str = "") -> UserError:
    """The error of a command for an error of the processor's clients, with the same code and exit code.

    Args:
        what: The failed action, the beginning of the sentence.
    """
    sentence = f"{what}: {error}" if what else str(error)
    return UserError(error.code, sentence, "" if error.exit_code in (USAGE, REFUSED) else SEE_STATUS, error.exit_code)


def of_kafka(error: KafkaException, what: str, client: AdminClient | Mapping[str, Any]) -> UserError:
    """The error of a command for a failed call to Kafka: why the client reaches no usable broker, else Kafka's own text.

    Args:
        what: The failed action, the beginning of the sentence.
        client: The client, or its settings.
    """
    from onefold import kafka_client
    from onefold.processor.io.kafka_errors import again_or_never

    if found := kafka_client.explain(error.args[0], client):
        return UserError.of(found)
    return of_processor(again_or_never(error.args[0], what))
