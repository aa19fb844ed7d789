"""How many files and connections the tasks of a process have open at once, and whether the process may have so many."""

import resource

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured
from onefold.processor.io.kafka_errors import CALL_TIMEOUT_S

# Of a process without a task.
_PROCESS = 26
# Of a task with one broker, whose clients each have a pipe for every broker that they know, and a connection. A task with
# replicas has the clients of its decision log besides.
_TASK, _TASK_WITH_REPLICAS = 20, 45
# And with every further broker: a pipe, which is two, and a connection for each client.
_FURTHER, _FURTHER_WITH_REPLICAS = 6, 12


def needed(tasks: int, brokers: int, *, replicated: bool) -> int:
    """Return how many files so many tasks have open with a cluster of so many brokers, to within a tenth."""
    one, further = (_TASK_WITH_REPLICAS, _FURTHER_WITH_REPLICAS) if replicated else (_TASK, _FURTHER)
    return _PROCESS + tasks * (one + further * max(0, brokers - 1))


def check(tasks: int, brokers: int, *, replicated: bool) -> None:
    """Raise Misconfigured where this process may not have as many files open as so many tasks need. Without this check, a
    client of Kafka that can open nothing more ends in a way that names no cause.
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
    """How many brokers answer for the cluster; 1 while none says so, and the tasks wait for one by themselves."""
    try:
        return len(admin.list_topics(timeout=CALL_TIMEOUT_S).brokers) or 1
    except KafkaException:
        return 1
