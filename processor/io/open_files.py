"""The number of files and connections that a process's tasks have open, and a check of the process's limit."""

import resource

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured
from onefold.processor.io.kafka_errors import CALL_TIMEOUT_S

# The open files of a process without a task.
_PROCESS = 26
# The open files of a task with one broker. Each Kafka client has a pipe and a connection per known broker. A task with
# replicas also has the clients of its decision log.
_TASK, _TASK_WITH_REPLICAS = 20, 45
# Further files per task and broker: a pipe, which is two files, and a connection for each client.
_FURTHER, _FURTHER_WITH_REPLICAS = 6, 12


def needed(tasks: int, brokers: int, *, replicated: bool) -> int:
    """Return the approximate number of open files for the tasks and brokers, to within a tenth."""
    one, further = (_TASK_WITH_REPLICAS, _FURTHER_WITH_REPLICAS) if replicated else (_TASK, _FURTHER)
    return _PROCESS + tasks * (one + further * max(0, brokers - 1))


def check(tasks: int, brokers: int, *, replicated: bool) -> None:
    """Raise Misconfigured if the process's limit of open files is too low for the tasks. Without this check, a Kafka client
    that reaches the limit fails with an error that names no cause.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = needed(tasks, brokers, replicated=replicated)
    if limit != resource.RLIM_INFINITY and files > limit:
        raise Misconfigured(
            Code.TOO_FEW_OPEN_FILES,
            f"{tasks} tasks need about {files:,} open files, and the limit of this process is {limit:,}: raise the limit "
            "(ulimit -Hn, LimitNOFILE= of systemd, --ulimit nofile= of docker run), or start more processes of the pipeline on "
            "other machines",
        )


def brokers_of(admin: AdminClient) -> int:
    """Return the number of brokers in the cluster; 1 if no broker responds, since the tasks themselves wait for a broker."""
    try:
        return len(admin.list_topics(timeout=CALL_TIMEOUT_S).brokers) or 1
    except KafkaException:
        return 1
