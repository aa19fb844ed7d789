"""The settings of every command: environment variables ONEFOLD_*, or the same names in a file `onefold.env`.

The file is in the working folder or in the folder of the surrounding project. A command's option overrides the environment.
The environment overrides the files, the working folder's file overrides the project's file, and each overrides the defaults.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from onefold.config import access_token, allowed_hosts, redaction, setting_sources, stack_state
from onefold.config.errors import UserError
from onefold.config.guarantee import BREAKING
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.pipelines import REPLICAS_MAX, Pipeline, project_file
from onefold.replication import Replication

PREFIX = "ONEFOLD_"
ENVIRONMENT_FILE = "onefold.env"
PARTITIONS_MAX = 64  # one task, and one transactional producer with its threads, per partition
INSTANCES_MAX = 16
SPARK_LOCAL = "local[*]"  # as many tasks at once as this machine has cores
REPLICATION_MAX = 32767  # Kafka's protocol has 16 bits for it
# Prefixes of the variables that libpq would add to the connection string of the embedded PostgreSQL. They are for the user's
# own servers.
_LIBPQ = ("PGHOSTADDR", "PGSERVICE", "PGSSL", "PGREQUIRE", "PGCHANNELBINDING", "PGGSS", "PGTARGETSESSIONATTRS")
# Errors repeat no wrong value of these settings, which may contain a password. The reason is still reported.
HOLD_SECRETS = {
    *("postgres_dsn", "dashboard_dsn", "spark_kafka", "kafka_options", "schema_registry_url", "objects_endpoint"),
    *("spark_options", "dashboard_token"),
}
# The tasks share the memory: with 64 partitions each has a megabyte, which still suffices for the state engine.
STATE_MEMORY_MIN_MB = 64
STALL_MIN_S = (
    10.0  # services query the servers for lag every 5 s: a bound below twice the interval would cause false alarms
)
SESSION_MAX_S = 300.0  # librdkafka's max.poll.interval.ms, which no session may exceed
INTERVAL_MAX_S = 3600.0  # for a longer interval, start the sink on a schedule
FAIL_PCT_MAX = 50.0  # beyond half, retries dominate a test with injected failures


class Settings(BaseSettings):
    """The user's settings. Without servers of the user's own, commands use the running embedded stack."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_file=ENVIRONMENT_FILE, extra="ignore", frozen=True)

    bootstrap_servers: str | None = Field(None, description="host:port[,host:port...] of a Kafka of your own")
    postgres_dsn_file: Path | None = Field(
        None, description="a file of such an address, for a secret; the variable ONEFOLD_POSTGRES_DSN wins over it"
    )
    postgres_dsn: str | None = Field(
        None,
        validate_default=True,  # for the address in the file
        description="postgresql://... of a PostgreSQL of your own",
    )
    spark_kafka: dict[str, str] = Field(
        default_factory=dict,
        description="settings of the sink's Kafka client in Java, a variable each: SSL_CIPHER_SUITES for ssl.cipher.suites",
    )
    kafka_options_file: Path | None = Field(
        None, description="a file of the same JSON as ONEFOLD_KAFKA_OPTIONS, for a secret; the variable wins over it"
    )
    kafka_options: dict[str, str] = Field(
        default_factory=dict,
        validate_default=True,  # for the settings in the file
        description="more librdkafka settings, as a JSON object; the sink translates them",
    )
    schema_registry_url: str | None = Field(None, description="http(s)://... of a Confluent schema registry")
    home: Path = Field(
        default_factory=lambda: _project_folder() / ".onefold",
        description="the folder of the embedded stack's data, logs and state",
    )
    objects: str | None = Field(
        None,
        description="file:///folder or s3://bucket/prefix: where jobs keep their objects; unset: a folder of the data directory",
    )
    objects_endpoint: str | None = Field(None, description="http(s)://... of an S3 that is not Amazon's")
    judge_home: Path | None = Field(
        None,
        description="the folder of the checkpoints of `verify`; unset: a folder of the data directory",
    )
    state: Literal["auto", "memory", "disk"] = Field(
        "auto", description="where processors keep states: auto is memory until they are too large for it"
    )
    state_memory_mb: int = Field(
        1024, ge=STATE_MEMORY_MIN_MB, description="megabytes of memory that the states of one processor may take"
    )
    state_home: Path | None = Field(
        None,
        description="the folder of states on disk, on a disk of this machine; unset: a folder of the data directory",
    )
    cache: Path = Field(
        default_factory=lambda made: _cache(made.get("home")),
        description="the folder of jars; unset: the user's own cache, or a folder of the data directory if the user has no cache",
    )
    kafka_port: int = Field(29092, ge=0, le=65535, description="port of the embedded Kafka; 0 picks a free one")
    postgres_port: int = Field(25432, ge=0, le=65535, description="port of the embedded PostgreSQL; 0 picks a free one")
    dashboard: bool = Field(True, description="on or off: whether `up` starts the dashboard")
    dashboard_port: int = Field(28080, ge=0, le=65535, description="port of the dashboard; 0 picks a free one")
    dashboard_hosts: str = Field(
        "", description="names beside localhost under which the dashboard answers, with commas: board.example,*.example"
    )
    dashboard_token_file: Path | None = Field(
        None, description="a file of ONEFOLD_DASHBOARD_TOKEN, for a secret; the variable wins over it"
    )
    dashboard_token: str | None = Field(
        None,
        validate_default=True,  # for the token in the file
        description="a token that the dashboard and services ask for before they answer; unset: they ask for none",
    )
    dashboard_dsn: str | None = Field(None, description="postgresql://... of a login for the dashboard alone")
    partitions: int = Field(4, ge=1, le=PARTITIONS_MAX, description="partitions of new topics")
    replication_factor: int | None = Field(
        None, ge=1, le=REPLICATION_MAX, description="replicas of new topics; unset: as the brokers are set"
    )
    min_insync_replicas: int | None = Field(
        None,
        ge=1,
        le=REPLICATION_MAX,
        description="min.insync.replicas of new topics; unset: as the brokers are set",
    )
    processor_instances: int = Field(
        0,
        ge=0,
        le=INSTANCES_MAX,
        description="processes per pipeline that `up` and `process` start; 0: the cores, shared among the pipelines",
    )
    replicas: int | None = Field(
        None,
        ge=1,
        le=REPLICAS_MAX,
        description="processes that compute each task side by side; unset: as each pipeline declares, or 1",
    )
    audited: str = Field(
        "",
        description="pipelines that `up` starts a continuous verifier for: names with commas, or all for each that can have one",
    )
    sinks: int = Field(1, ge=1, le=INSTANCES_MAX, description="Spark sinks that `up` starts")
    sink_interval_s: float = Field(
        0.0,
        ge=0,
        le=INTERVAL_MAX_S,
        description="seconds between the starts of two batches of a query; 0: the next batch starts at once",
    )
    spark_master: str = Field(
        SPARK_LOCAL,
        description="where the sink's tasks run: local[*], spark://host:7077, k8s://https://host:6443 or yarn",
    )
    spark_options: dict[str, str] = Field(
        default_factory=dict, description="more settings of Spark, as a JSON object with the names spark.*"
    )
    session_timeout_s: float | None = Field(
        None,
        ge=1,
        le=SESSION_MAX_S,
        description="seconds until a group misses a killed processor or worker; unset: 6 with one broker, 20 with more",
    )
    job_timeout_s: float = Field(
        30.0, ge=1, le=3600, description="seconds without a checkpoint after which a job's worker is taken for dead"
    )
    chaos_patience: float = Field(
        1.0, ge=1, le=10, description="how many times the bounds of `chaos` a stall may take: 1 on two quiet cores"
    )
    fail_state_pct: float = Field(0.0, ge=0, le=FAIL_PCT_MAX, description="share of processor transactions to fail")
    fail_map_pct: float = Field(0.0, ge=0, le=FAIL_PCT_MAX, description="share of sink batches whose tasks fail")
    fail_reduce_pct: float = Field(0.0, ge=0, le=FAIL_PCT_MAX, description="share of sink transactions to fail")
    allow: str = Field("", description="what may break a promise, by name: ONEFOLD_ALLOW=fsync_off,compaction")
    metrics_port: int = Field(
        0, ge=0, le=65535, description="port of a service's /metrics and /healthz; 0: none, and `up` picks free ones"
    )
    metrics_host: str = Field("127.0.0.1", description="address that services listen on for metrics")
    metrics_hosts: str = Field("", description="names beside localhost under which services answer for metrics")
    stall_s: float = Field(
        60.0,
        ge=STALL_MIN_S,
        le=3600,
        description="seconds in which nothing may move before /healthz answers 503",
    )
    log_file_mb: int = Field(
        10, ge=1, le=10_000, description="megabytes of a file of a service's log, after which `up` has a new one begun"
    )
    log_files: int = Field(5, ge=2, le=10, description="files that are kept of each service's log")
    log_format: Literal["auto", "human", "json"] = Field(
        "auto", description="log lines for people or for programs: auto is people on a terminal, programs elsewhere"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # pydantic passes it by name
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """See pydantic-settings."""
        files = getattr(dotenv_settings, "env_file", None)
        return (
            init_settings,
            setting_sources.Environment(settings_cls),
            setting_sources.File(settings_cls, env_file=files),
        )

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: Any, info: ValidationInfo) -> Any:
        # A shell unsets a variable, also from a file, for one command with `ONEFOLD_POSTGRES_DSN= onefold ...`.
        # docker-compose.yml passes an unset variable as an empty value.
        field = cls.model_fields[info.field_name or ""]
        return field.get_default(call_default_factory=True, validated_data=info.data) if value == "" else value

    @field_validator("schema_registry_url", "objects_endpoint")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("it should begin with http:// or https://")
        return value

    @field_validator("postgres_dsn", "dashboard_token", mode="before")
    @classmethod
    def _may_be_in_a_file(cls, value: Any, info: ValidationInfo) -> Any:
        return value or _content(info.data.get(f"{info.field_name}_file")) or None

    @field_validator("dashboard_token")
    @classmethod
    def _cannot_be_guessed(cls, value: str | None) -> str | None:
        if value is not None and not (
            len(value) >= access_token.CHARACTERS_MIN and value.isascii() and value.isprintable()
        ):
            raise ValueError(f"it should have {access_token.CHARACTERS_MIN} characters of ASCII or more")
        return value

    @field_validator("postgres_dsn", "dashboard_dsn")
    @classmethod
    def _can_be_read(cls, value: str | None) -> str | None:
        # An installation without a PostgreSQL client, for instance of the processor alone, opens no connection.
        if value is not None and find_spec("psycopg"):
            redaction.check_dsn(value)  # later errors repeat parts of the value, and no part may be a password
        return value

    @field_validator("spark_kafka", "kafka_options")
    @classmethod
    def _known_to_both_clients(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        librdkafka: dict[str, str] = {}
        java: dict[str, str] | None = value
        if info.field_name == "kafka_options":
            librdkafka = {**_options_in(info.data.get("kafka_options_file")), **value}
            java = info.data.get("spark_kafka")  # None: invalid, and already reported
        if (librdkafka or java) and java is not None:  # without these settings, the sink's modules need no import
            from onefold.processor.core.errors import Misconfigured
            from onefold.spark_sink.kafka import client

            try:
                client.translate(librdkafka, java)
            except Misconfigured as error:
                file = info.data.get("kafka_options_file") if info.field_name == "kafka_options" else None
                raise ValueError(f"{error}{f' (with those of {file})' if file else ''}") from None
        return value

    @field_validator("min_insync_replicas")
    @classmethod
    def _can_be_in_sync(cls, value: int | None, info: ValidationInfo) -> int | None:
        factor = info.data.get("replication_factor")
        if value is not None and factor is not None and value > factor:
            raise ValueError(f"it should be at most {PREFIX}REPLICATION_FACTOR, which is {factor}")
        return value

    @field_validator("spark_master", "spark_options")
    @classmethod
    def _known_to_spark(cls, value: Any, info: ValidationInfo) -> Any:
        if not value or value == SPARK_LOCAL:  # the default needs no import of the sink
            return value
        from onefold.processor.core.errors import Misconfigured
        from onefold.spark_sink.spark import options

        try:
            (options.check_options if info.field_name == "spark_options" else options.check_master)(value)
        except Misconfigured as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("allow")
    @classmethod
    def _known_to_break(cls, value: str) -> str:
        if unknown := [name for name in _names(value) if name not in BREAKING]:
            raise ValueError(f"there is no {unknown[0]!r} among {', '.join(BREAKING)}")
        return value

    @field_validator("dashboard_hosts", "metrics_hosts")
    @classmethod
    def _are_hosts(cls, value: str) -> str:
        allowed_hosts.names(value)
        return value

    @field_validator(
        "home", "cache", "judge_home", "state_home", "kafka_options_file", "postgres_dsn_file", "dashboard_token_file"
    )
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        try:
            return value.expanduser().absolute() if value else value  # child processes run in different folders
        except RuntimeError:
            raise ValueError("~ stands for no folder: the user has neither HOME nor an entry in /etc/passwd") from None

    @field_validator("postgres_dsn_file", "dashboard_token_file")
    @classmethod
    def _has_an_address(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and not _content(value):
            raise ValueError("it is empty")
        if value is not None and info.field_name == "postgres_dsn_file" and find_spec("psycopg"):
            redaction.check_dsn(_content(value))
        return value

    @field_validator("kafka_options_file")
    @classmethod
    def _has_options(cls, value: Path | None) -> Path | None:
        _options_in(value)
        return value

    @cached_property
    def running(self) -> dict[str, Any]:
        """The state of the embedded stack, {} if the stack is not running."""
        return stack_state.read_running(self.home)

    @cached_property
    def librdkafka(self) -> dict[str, str]:
        """The librdkafka settings besides the servers, from the file and from the variable. The variable overrides the file."""
        try:
            return {**_options_in(self.kafka_options_file), **self.kafka_options}
        except ValueError as error:  # the file has changed since its validation
            wrong = f"{PREFIX}KAFKA_OPTIONS_FILE is {str(self.kafka_options_file)!r}: {error}"
            raise UserError(Code.SETTING_WRONG, wrong, _help(), USAGE) from None

    def replicas_of(self, pipeline: Pipeline) -> int:
        """The number of processes that compute each of the pipeline's tasks."""
        return pipeline.replicas if self.replicas is None else self.replicas

    def session_timeout_ms(self) -> int | None:
        """The session timeout of consumer groups in milliseconds; None for the default by the number of brokers."""
        return None if self.session_timeout_s is None else round(self.session_timeout_s * 1000)

    def replication(self) -> Replication:
        """The replication of new topics."""
        return Replication(self.replication_factor, self.min_insync_replicas)

    def allowed(self) -> frozenset[str]:
        """The permitted breaking rules (`guarantee.BREAKING`)."""
        return frozenset(_names(self.allow))

    def to_audit(self) -> list[str]:
        """The names of the pipelines with a continuous verifier; ["all"] for each pipeline that supports a verifier."""
        return _names(self.audited)

    def object_store(self) -> str:
        """The address of the object store; by default a folder of the data directory."""
        return self.objects or (self.home / "objects").as_uri()

    def checkpoints(self) -> Path:
        """The folder of the checkpoints of `verify`."""
        return self.judge_home or self.home / "judge"

    def states(self) -> Path:
        """The folder of processor states on disk."""
        return self.state_home or self.home / "states"

    def kafka(self) -> str:
        """The bootstrap servers of Kafka. Raises UserError if the setting is unset and the embedded stack is not running."""
        return self._server("bootstrap_servers", "Kafka")

    def postgres(self) -> str:
        """The DSN of PostgreSQL. Raises UserError if the setting is unset and the embedded stack is not running."""
        if not self.postgres_dsn:
            forget_servers()
        return self._server("postgres_dsn", "PostgreSQL")

    def client(self) -> dict[str, str]:
        """The librdkafka settings of every Kafka client."""
        return {"bootstrap.servers": self.kafka(), **self.librdkafka}

    def usable_client(self) -> dict[str, str]:
        """`client`, checked by librdkafka. Raises UserError (exit code 2) if librdkafka refuses a setting."""
        from confluent_kafka import KafkaException  # most commands need no Kafka client

        from onefold import kafka_client

        client = self.client()
        try:
            kafka_client.producer(client)
        except KafkaException as error:
            reason = redaction.scrub(error.args[0].str(), self.librdkafka)
            raise UserError(
                Code.KAFKA_SETTING_WRONG, f"the Kafka settings cannot be used: {reason}", _help(), USAGE
            ) from None
        return client

    def as_environment(self) -> dict[str, str]:
        """The user's settings as variables for a child process in a different folder.

        An empty variable unsets a setting that the child would inherit or read from a file.
        """
        made = self.model_dump(mode="json", include=self.model_fields_set)
        for name in ("postgres_dsn", "dashboard_token"):
            file = getattr(self, f"{name}_file")
            if file and name in made and made[name] == _content(file):
                made[name] = None  # the child reads the file
        java = dict.fromkeys(setting_sources.java_client(Settings, PREFIX, files()), "") | made.pop(
            setting_sources.JAVA_CLIENT, {}
        )
        return {setting_sources.java_variable(PREFIX, name): value for name, value in java.items()} | {
            PREFIX + name.upper(): json.dumps(value) if isinstance(value, dict) else "" if value is None else str(value)
            for name, value in made.items()
        }

    def _server(self, name: str, product: str) -> str:
        found = getattr(self, name) or self.running.get(name)
        if not found:
            raise UserError(
                Code.STACK_STOPPED,
                f"there is no {product} to talk to: the embedded stack in {self.home} is not running",
                f"Start it with `onefold up`, or set {PREFIX}{name.upper()} to a {product} of your own.",
            )
        return str(found)


def forget_servers() -> None:
    """Remove the variables with which libpq would connect to a different server than the stack's, or with different options."""
    for name in [name for name in os.environ if name.startswith(_LIBPQ)]:
        del os.environ[name]


def load() -> Settings:
    """The settings of this process. Raises UserError (exit code 2) with every variable whose value is wrong."""
    try:
        _check_names()
        java = setting_sources.java_client(Settings, PREFIX, files())
        options = {name: value for name, (value, _) in java.items() if value}
        outranked: dict[str, Any] = setting_sources.outranked(Settings, PREFIX, files())
        return Settings(_env_file=files(), spark_kafka=options, **outranked)
    except ValidationError as error:
        # A default derived from a wrong value is no separate fault.
        found = [problem for problem in error.errors() if problem["type"] != "default_factory_not_called"]
        raise UserError(Code.SETTING_WRONG, "; ".join(map(_sentence, found)), _help(), USAGE) from None
    except UnicodeDecodeError:
        raise UserError(Code.NOT_UTF8, f"{ENVIRONMENT_FILE} is not text in UTF-8", _help(), USAGE) from None
    except ValueError as error:  # a value with invalid JSON
        name = next((name for name in Settings.model_fields if f'"{name}"' in str(error)), "")
        raise UserError(
            Code.SETTING_WRONG, f"{PREFIX}{name.upper()} is not valid JSON", 'Write it like {"name": "value"}.', USAGE
        ) from None


def files() -> tuple[Path, Path]:
    """The files of settings: first the project's, then the working folder's, which overrides the project's.

    The project's file gives every folder of the project the same stack.
    """
    return _project_folder() / ENVIRONMENT_FILE, Path(ENVIRONMENT_FILE)


def _check_names() -> None:
    found = setting_sources.misspelt(Settings, PREFIX, files())
    if found:
        wrong = "; ".join(f"{name} is no setting, {meant} is" for name, meant in found)
        raise UserError(Code.SETTING_WRONG, wrong, _help(), USAGE)


def _options_in(file: Path | None) -> dict[str, str]:
    """Read librdkafka settings from a file. Raises ValueError without the values, which may be passwords."""
    if file is None:
        return {}
    try:
        found = json.loads(_content(file))
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("its content is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError("its content is no JSON object")
    if wrong := [name for name, value in found.items() if not (isinstance(value, str) and value.isprintable())]:
        raise ValueError(f"the value of {wrong[0]!r} is no text in one line: write it in quotes")
    return found


def _content(file: Path | None) -> str:
    """The text of a file without white space at both ends; "" without a file. Raises ValueError without any of the content."""
    try:
        return file.read_text(encoding="utf-8").strip() if file is not None else ""
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("its content is not text in UTF-8") from None


def _names(value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


def _project_folder() -> Path:
    """The folder of the project around the working folder; the working folder outside a project."""
    file = project_file()
    return file.parent if file else Path()


def _cache(home: Path | None) -> Path:
    """The platform's cache folder if the folder exists or can be created; else a folder of the data directory."""
    # The user may have neither HOME nor an entry in /etc/passwd. HOME may also be inaccessible, such as root's after `su`.
    with suppress(RuntimeError, OSError):
        found = platformdirs.user_cache_path("onefold")
        if found.exists() or os.access(next(one for one in found.parents if one.exists()), os.W_OK):
            return found
    return (home or _project_folder() / ".onefold").absolute() / "cache"


def _sentence(problem: Any) -> str:
    name, wrong = str(problem["loc"][0]), problem["msg"].removeprefix("Value error, ")
    if name in HOLD_SECRETS:
        within = "".join(f" {part}:" for part in problem["loc"][1:])
        return f"{setting_sources.variable(PREFIX, name)} cannot be used:{within} {wrong}"
    given = problem["input"] if len(problem["loc"]) == 1 else os.environ.get(PREFIX + name.upper(), problem["input"])
    wanted = wrong[0].lower() + wrong[1:]
    return f"{PREFIX}{name.upper()} is {given!r}: {wanted.split(', unable to')[0]}"


def _help() -> str:
    return f"Correct it in the environment or in {ENVIRONMENT_FILE} and run the command again."
