"""Errors, named by what happens next. Anything else is a bug: it crashes loudly and the supervisor starts again.

ProcessorError
|__ Retriable   the same call may succeed: call it again within the deadline
|   |__ Unauthenticated   Kafka lets the client in only after a person has corrected something. A start ends with it
|__ Abortable   this transaction is lost: abort, re-initialise the producer, and propose the same records again
|   |__ TooMuch   likewise, and with fewer records: it may have been too large. A single one becomes a dead letter
|__ Fenced      another owner has the work: leave quietly
|__ Corrupted   what is held in memory cannot be trusted: drop it, restore from the changelog
|   |__ Damaged     files on disk are no use: delete them, and restore as after any of these
|__ Rejected    this record can never be processed: a dead letter with the reason, and go on
|__ Refused     the log is not the log that was read before, or a setting is wrong: stop, a human decides
    |__ Forbidden   Kafka refuses the client a right: stop, a person allows it
    |__ Misconfigured   a pipeline's declaration or a contract is wrong: stop, nothing but an edit can help
"""

from onefold.error_codes import Code, CodedError
from onefold.exit_codes import REFUSED, UNAVAILABLE, USAGE


class ProcessorError(CodedError):
    """The root."""


class Retriable(ProcessorError):
    """The same call may succeed: call it again within the deadline."""

    exit_code = UNAVAILABLE


class Unauthenticated(Retriable):
    """Kafka refuses the client's login, certificate or protocol: a start ends with it, and a service that runs goes on trying."""

    exit_code = REFUSED


class Abortable(ProcessorError):
    """This transaction is lost: abort, re-initialise the producer, and propose the same records again."""


class TooMuch(Abortable):
    """This transaction is lost, and its size may be why: do it again with fewer records. A single record that is too much
    again and again, while other transactions go through, becomes a dead letter.
    """


class Fenced(ProcessorError):
    """Another owner has the work: leave quietly."""


class Corrupted(ProcessorError):
    """What is held in memory cannot be trusted: drop it, restore from the changelog."""


class Damaged(Corrupted):
    """Files of states are torn, or no files of states: delete them, restore from the changelog."""


class Rejected(ProcessorError):
    """This record can never be processed: a dead letter with the reason, and go on.

    Handlers raise it, and may derive from it: the reason is whatever `str` makes of the first argument, or of `args` where a
    subclass does not call this `__init__`.
    """

    code = Code.REJECTED

    def __init__(self, message: object = "", code: Code = Code.REJECTED) -> None:
        super().__init__(code, str(message))
        self.args = (self.message, code)

    def __str__(self) -> str:
        return self.message if "message" in vars(self) else Exception.__str__(self)


class Refused(ProcessorError):
    """The log is not the log that was read before, or a setting is wrong: stop, a human decides."""

    exit_code = REFUSED


class Forbidden(Refused):
    """Kafka refuses the client a right: stop, a person allows it."""


class Misconfigured(Refused):
    """A pipeline's declaration or a contract is wrong: stop, nothing but an edit can help."""

    exit_code = USAGE
