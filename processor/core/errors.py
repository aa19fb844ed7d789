"""Errors, named by what happens next. Any other exception is a bug: the process crashes and the supervisor restarts it.

ProcessorError
|__ Retriable   the same call may succeed: call again within the deadline
|   |__ Unauthenticated   Kafka rejects the client until a person corrects a setting: a start ends with an error
|__ Abortable   the transaction is lost: abort, re-initialise the producer, and propose the same records again
|   |__ TooMuch   the transaction may be too large: retry with fewer records. A single record becomes a dead letter
|__ Fenced      another owner has the work: stop without an error
|__ Corrupted   the state in memory cannot be trusted: drop the state and restore from the changelog
|   |__ Damaged     state files on disk are unusable: delete them, then restore as above
|__ Rejected    the record can never be processed: write a dead letter with the reason, and continue
|__ Refused     the log is not the log read before, or a setting is wrong: stop, a human decides
    |__ Forbidden   Kafka denies the client a right: stop, a person grants the right
    |__ Misconfigured   a pipeline's declaration or a schema is wrong: stop until a person edits the file
"""

from onefold.error_codes import Code, CodedError
from onefold.exit_codes import REFUSED, UNAVAILABLE, USAGE


class ProcessorError(CodedError):
    """The base class."""


class Retriable(ProcessorError):
    """The same call may succeed: call again within the deadline."""

    exit_code = UNAVAILABLE


class Unauthenticated(Retriable):
    """Kafka refuses the client's login, certificate or protocol. A start ends with an error; a running service keeps trying."""

    exit_code = REFUSED


class Abortable(ProcessorError):
    """The transaction is lost: abort, re-initialise the producer, and propose the same records again."""


class TooMuch(Abortable):
    """The transaction is lost, perhaps because of its size: retry with fewer records. If a single record fails repeatedly while
    other transactions commit, the record becomes a dead letter.
    """


class Fenced(ProcessorError):
    """Another owner has the work: stop without an error."""


class Corrupted(ProcessorError):
    """The state in memory cannot be trusted: drop the state and restore from the changelog."""


class Damaged(Corrupted):
    """The state files are corrupted, or are no state files: delete them and restore from the changelog."""


class Rejected(ProcessorError):
    """The record can never be processed: write a dead letter with the reason, and continue.

    Handlers raise `Rejected` or a subclass. The reason is `str` of the first argument, or of `args` if a
    subclass does not call this `__init__`.
    """

    code = Code.REJECTED

    def __init__(self, message: object = "", code: Code = Code.REJECTED) -> None:
        super().__init__(code, str(message))
        self.args = (self.message, code)

    def __str__(self) -> str:
        return self.message if "message" in vars(self) else Exception.__str__(self)


class Refused(ProcessorError):
    """The log is not the log read before, or a setting is wrong: stop, a human decides."""

    exit_code = REFUSED


class Forbidden(Refused):
    """Kafka denies the client a right: stop, a person grants the right."""


class Misconfigured(Refused):
    """A pipeline's declaration or a schema is wrong: stop until a person edits the file."""

    exit_code = USAGE
