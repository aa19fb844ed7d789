"""The catalogue of error codes: a code for each kind of error, independent of the sentence and the program.

Tests, scripts and runbooks refer to the code, because the wording of the sentence may change. A number is never reused for a
different kind. `python -m tests.support.error_codes` generates docs/errors.md from this file.
"""

from __future__ import annotations

import json
from enum import Enum

from onefold.exit_codes import FAILED


class Code(Enum):
    """The number and the meaning of a kind of error. The hundreds group the kinds by the part that a person must examine."""

    # The command line, settings, files and programs of this machine.
    ARGUMENT_WRONG = 101, "An argument or an option of the command is wrong, missing, or does not go with the others."
    NOT_CONFIRMED = 102, "The command deletes or changes data, and no terminal is there to ask for a confirmation."
    PIPELINE_UNKNOWN = 103, "The command names a pipeline, or a topic of one, that the project does not declare."
    NAME_UNKNOWN = 104, "The command names a page, tool, service, log, fault or sheet that does not exist."
    NO_JOBS = 105, "The command is about jobs, and the pipeline declares none."
    NO_GENERATOR = 106, "The command needs a generator of events, and the pipeline has none, or one that makes too few."
    NAME_TAKEN = 107, "A new project or pipeline cannot have this name or this folder."
    COMMAND_WRONG = 108, "A command that an installed package brings does not load."
    SETTING_WRONG = 110, "A setting of Onefold (`ONEFOLD_...`) is wrong."
    KAFKA_SETTING_WRONG = 111, "A setting of the Kafka clients is wrong, missing, or not known to all clients."
    GUARANTEE_WEAKENED = (
        112,
        "A setting of Kafka or PostgreSQL weakens the guarantee, and `ONEFOLD_ALLOW` does not name it.",
    )
    EXPOSED = 113, "An address can be reached from other machines, and the command does not say that this is meant."
    PORT_TAKEN = 114, "A port or an address cannot be listened on."
    FILE_UNUSABLE = 120, "A file cannot be read or written."
    FOLDER_UNUSABLE = 121, "A folder cannot be used: its name, its content or its permissions."
    NOT_UTF8 = 122, "A file, an argument or a variable is not text in UTF-8."
    DISK_FULL = 123, "A file system has no room, or is read-only."
    TOO_FEW_OPEN_FILES = 124, "The limit of open files is too low."
    PACKAGE_MISSING = 130, "A Python package that the command needs is not installed."
    PROGRAM_MISSING = 131, "A program that the command needs is not installed."
    # Earlier releases used 132: it stays unused.
    NEWER_VERSION = 133, "A newer Onefold has written a file, a table or a topic."

    # Kafka: brokers, topics, groups, transactions, the schema registry.
    KAFKA_SILENT = 201, "Kafka does not answer."
    KAFKA_LOGIN = 202, "Kafka refuses the client's login, certificate or protocol."
    KAFKA_RIGHT = 203, "The client lacks a right in Kafka."
    KAFKA_CALL_FAILED = 204, "A call to Kafka has failed; the sentence ends with Kafka's own words."
    TOPIC_MISSING = 210, "A topic does not exist."
    TOPIC_RECREATED = 211, "A topic was deleted and created again: its records are not those that were read before."
    RECORDS_LOST = 212, "A topic ends before an offset that was reached, or lacks records in between."
    RECORDS_DELETED = 213, "A topic begins after the next offset: records were deleted before they were read."
    PARTITIONS_CHANGED = 214, "Topics do not have the number of partitions that they need to have."
    TOPIC_UNREADABLE = (
        215,
        "A topic cannot be read up to its end: an open transaction, or a partition without a leader.",
    )
    TOPIC_UNWRITABLE = 216, "A topic does not take records."
    TOPIC_COMPACTED = 217, "A topic is compacted, and all its records are needed."
    TOPIC_UNDELETED = 218, "A topic could not be deleted."
    GROUP_LEFT = (
        220,
        "The consumer group does not have this process as a member any more, or another version has its tasks.",
    )
    INSTANCE_TAKEN = 221, "Another live process has this instance's name in the consumer group."
    SESSION_LIMIT = 222, "The brokers do not allow the session time-out."
    FENCED = 230, "Another process has taken over the work."
    TRANSACTION_LOST = 231, "A Kafka transaction was aborted, and is done again."
    TOO_LARGE = 232, "A record, a transaction or a proposal was too large for Kafka, or took too long."
    COMMIT_UNKNOWN = 233, "The outcome of a commit or a call is unknown."
    REGISTRY_SILENT = 240, "The schema registry does not answer, or answers with an error."
    REGISTRY_WRONG = 241, "The schema registry's address is wrong, or something else answers there."

    # PostgreSQL: the server, the tables, the files of sql/.
    POSTGRES_SILENT = 301, "PostgreSQL does not answer."
    POSTGRES_REFUSES = 302, "PostgreSQL refuses a statement or a right."
    POSTGRES_UNFIT = 303, "The database cannot be used: its encoding, or a connection pooler in front of it."
    TABLE_MISSING = 304, "A table does not exist."
    KEY_WRONG = 305, "The command's key does not name one row of the table."
    FOREIGN_KEY = 306, "Another table refers to a table that is to be emptied."
    SQL_WRONG = 307, "A file of `sql/` is missing, wrong, or does not work."
    SQL_CHANGED = 308, "A file of `sql/schema` was changed or renamed after it was applied."
    ROWS_REFUSED = 309, "PostgreSQL refuses the rows of a batch, and no single row is to blame."
    POSITIONS_MOVED = 310, "A batch does not continue the positions in PostgreSQL: the sink goes back to them."
    TABLES_OF_OTHER_TOPICS = (
        311,
        "An earlier version filled the tables from the decision log, and this version reads output topics only.",
    )
    TABLE_KEYLESS = 312, "A table has no key by which the command could compare its rows."
    TABLE_DIFFERS = 313, "A table does not have the columns or the key of `sql/schema`."
    POSTGRES_HELD_UP = 314, "Others hold up a statement in PostgreSQL: a lock, or a standby that does not confirm."
    POSTGRES_RIGHT = 315, "The client lacks a right in PostgreSQL, or has more rights than it may have."
    POSTGRES_LOGIN = 316, "PostgreSQL refuses the client's login, or the client PostgreSQL's certificate."

    # Spark and Java.
    JAVA_UNUSABLE = 401, "No Java 17 or 21 is there, or it does not start."
    SPARK_NOT_STARTED = 402, "Spark did not start, or cannot work in this folder."
    SPARK_QUERY = 403, "Spark has ended a query, has not begun one, or cannot read the topics."
    CHECKPOINT_LOST = 404, "Spark's checkpoint was lost, or goes back."
    JARS_MISSING = 405, "Jars could not be downloaded, or are not those of `jars.lock`."
    # Earlier releases used 406: it stays unused.
    SINK_STOPPED = 407, "A sink has stopped before its work was done."
    GAVE_UP = 408, "A sink could not begin or go on for too long; the sentence ends with the reason."
    NO_EXECUTORS = 409, "Spark has no executors, or its master does not answer."

    # Verification.
    MODEL_WRONG = 501, "The verification model of the pipeline is wrong."
    PROGRESS_UNKNOWN = (
        502,
        "The processor's progress does not explain the results, or the merge order cannot be followed.",
    )
    RECORD_UNREADABLE = 503, "A record of Onefold's own topics cannot be read."
    CHANGED_MEANWHILE = 504, "Dead letters were replayed or dropped while the verifier was reading."
    NO_VERDICT = 505, "`onefold verify` has ended without a verdict."
    NOT_DRAINED = 506, "The pipeline has not drained, or its input is still arriving: there is no verdict yet."

    # Records, dead letters, and the handlers of pipelines.
    REJECTED = 601, "The pipeline's handler rejects the record."
    VALUE_UNREADABLE = 602, "A record's value or key cannot be read, or does not follow its schema."
    VALUE_TOO_LARGE = 603, "A record's value is too large, or nested too deep."
    WRITER_SCHEMA_UNKNOWN = 604, "A record was written with a schema that Onefold does not know."
    WRITER_SCHEMA_UNUSABLE = 605, "A record was written with a schema that Onefold cannot read with."
    OUTPUT_WRONG = 606, "An output of the handler does not follow its schema."
    REPLAYED = (
        607,
        "A dead letter was replayed or dropped, so that its record does not count; or receipts of that were lost.",
    )
    HANDLER_FAILS = 608, "The handler fails at one record after the other."
    DEAD_LETTER_MISSING = 609, "There is no such dead letter."
    JOB_WRONG = 610, "A record is no job."

    # Pipelines and schemas.
    PIPELINE_WRONG = 701, "The declaration of a pipeline, or the module that it names, is wrong."
    SCHEMA_WRONG = 702, "A schema file of `avro/` is wrong."
    SCHEMA_MISSING = 703, "No schema names the topic."
    SCHEMA_INCOMPATIBLE = 704, "Records that were written with an earlier schema could not be read any more."
    SCHEMA_UNKNOWN = 705, "The sink does not know a schema of the written records: another version wrote them."
    JOBS_WRONG = 706, "The declaration of a pipeline's jobs, or their module, is wrong or fails."

    # The state of processors: changelog, states on disk, decision log, replicas, resets.
    CHANGELOG_WRONG = 801, "The changelog or the memory of a task is wrong: the task is restored."
    STATES_DAMAGED = 802, "The states on disk are damaged: the task is restored."
    STATES_FOLDER = 803, "States cannot be kept on disk in this folder."
    STATE_UNREADABLE = 804, "A stored state does not follow the state's class."
    DECISIONS_LOST = 805, "The decision log does not have the next decision: it was recreated, or has lost records."
    REPLICAS_CHANGED = (
        806,
        "A task is decided by replicas, and this process works by transactions, or the other way round.",
    )
    INPUTS_CHANGED = 807, "The pipeline reads other inputs than its replicas began with."
    RESET_INCOMPLETE = 808, "A reset of the pipeline has begun, and is incomplete."
    STILL_RUNNING = (
        809,
        "A process of the pipeline, or its session in PostgreSQL, works at what the command would change.",
    )
    SHARED_DATA = 810, "A reset or a rebuild would delete data of another pipeline, or data that cannot be made again."
    COMMAND_RUNNING = 811, "Another reset, rebuild, or replay or drop of dead letters of the pipeline is under way."
    PAUSED = 812, "The pipeline is paused, and the command needs it to go on."

    # The stack, containers, objects and measurements.
    STACK_STOPPED = 901, "The stack is not running."
    STACK_RUNS = 902, "The stack of an older Onefold is running."
    SERVICE_FAILED = 903, "A service of the stack did not start, or has ended."
    DATA_DIRECTORY = 904, "The data directory holds other files than those of a stack of Onefold, or lacks some."
    OBJECTS_SILENT = 910, "The object store does not answer, or does not do what it is asked for."
    OBJECTS_REFUSED = 911, "The object store has no such bucket, or the client lacks a right there."
    OBJECT_MISSING = 912, "An object is not in the object store."
    UPLOAD_WRONG = 913, "What is to be uploaded is wrong."
    SHEET_UNREADABLE = 914, "A sheet cannot be read."
    CONTAINERS = 920, "Docker, or a container of the stack, is not there or does not do what it is asked for."
    FAULT_IMPOSSIBLE = 921, "A fault cannot be injected here."
    MEASUREMENT_FAILED = 922, "A benchmark or a demonstration could not come to its end."
    # Earlier releases used 923: it stays unused.

    def __init__(self, number: int, meaning: str) -> None:
        self.number = number
        self.meaning = meaning

    @classmethod
    def of(cls, text: str) -> Code:
        """The code of `OF-123`."""
        return next(code for code in cls if str(code) == text)

    def __str__(self) -> str:
        return f"OF-{self.number}"


class CodedError(Exception):
    """An error with a code. For this error, a command prints the sentence and the hint, without a stack trace.

    Attributes:
        code: The kind of error.
        message: A sentence for a person, and the text of the error.
        hint: The remedy, may be empty.
        exit_code: The exit code from `onefold.exit_codes` of a process ended by the error.
    """

    hint = ""
    exit_code = FAILED

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code}, {self.message!r})"

    def as_text(self) -> str:
        """The error as two lines for a terminal."""
        return f"error {self.code}: {self.message}" + (f"\n  {self.hint}" if self.hint else "")

    def as_json(self) -> str:
        """The error as one JSON object for a program."""
        said = {"error": self.message, "hint": self.hint, "code": str(self.code), "exit_code": self.exit_code}
        return json.dumps(said, ensure_ascii=False)


def first_line(error: BaseException) -> str:
    """The first line of an error, for a state or a log line, without a stack trace. An empty error yields its class name."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
