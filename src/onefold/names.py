"""The names that PostgreSQL, Kafka and Spark can hold: of pipelines, topics, tables and columns.

Each `fault_of_…` returns the fault of a name, as the end of a sentence with the name's owner as subject, or "".
"""

import re
from collections.abc import Iterable, Iterator

#: PostgreSQL's NAMEDATALEN less one. PostgreSQL cuts longer names without an error.
POSTGRES_BYTES_MAX = 63
#: Kafka's limit: a partition's folder is named by the topic.
TOPIC_CHARACTERS_MAX = 249

# System columns of every table of PostgreSQL.
_SYSTEM_COLUMNS = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
# Schemas of PostgreSQL, of foreign objects, or of the staging tables of earlier sinks.
_SCHEMAS = {"information_schema", "public", "onefold_stage"}
_KAFKAS_OWN = {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PIPELINE = re.compile(r"[a-z_][a-z0-9_]*")
# The tokens of an SQL file: comments and texts with any content, and names, in quotes or without.
_PIECE = re.compile(
    r"""--[^\n]*|/\*.*?\*/|[eE]'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$"""
    r"""|"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^\W\d][\w$]*)""",
    re.DOTALL,
)


def pauses_topic(pipeline: str) -> str:
    """The name of the topic in which the pauses of a pipeline are."""
    return f"{pipeline}.pauses"


def fault_of_pipeline(name: str) -> str:
    """Check the name of a pipeline, which is also a schema and the first word of the topics."""
    if not _PIPELINE.fullmatch(name):
        return "a name has small letters, digits and _, because a schema and topics have it too"
    if name in _SCHEMAS or name.startswith("pg_"):
        return "the pipeline's schema would have that name, and that schema is not the pipeline's; rename the pipeline"
    return too_long(name)


def fault_of_column(name: str, others: Iterable[str]) -> str:
    """Check the name of a column in PostgreSQL, beside the columns that the sink adds."""
    if name in _SYSTEM_COLUMNS:
        return "has the name of a column that each table of PostgreSQL has already"
    return added(name, others) or too_long(name)


def added(name: str, others: Iterable[str]) -> str:
    """Check that a column differs from the columns that the sink adds."""
    return "has the name of a column that the sink adds itself" if name in others else ""


def too_long(name: str) -> str:
    """Check any name in PostgreSQL."""
    size = len(name.encode())
    if size <= POSTGRES_BYTES_MAX:
        return ""
    return f"has a name of {size} bytes, and PostgreSQL cuts names at {POSTGRES_BYTES_MAX}"


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two names that differ by case only, which are equal for Spark."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) != name:
            return other, name
    return None


def fault_of_topic(topic: str) -> str:
    """Check the name of a topic."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        return "has a name that Kafka refuses: a topic's name has letters of ASCII, digits, '.', '_' and '-'"
    if len(topic) > TOPIC_CHARACTERS_MAX:
        return f"has a name of {len(topic)} characters, and Kafka takes {TOPIC_CHARACTERS_MAX}"
    if topic in _KAFKAS_OWN:
        return "is a topic of Kafka itself"
    return ""


def metric_name(topic: str) -> str:
    """Kafka's name for the metrics of a topic. Kafka refuses a second topic with the same metrics name."""
    return topic.replace(".", "_")


def too_long_in(statements: str) -> Iterator[tuple[int, str]]:
    """The names in an SQL text that PostgreSQL would cut, each with the line; ignores names in the bodies of functions."""
    for found in _PIECE.finditer(statements):
        name = (found["quoted"] or found["plain"] or "").replace('""', '"')
        if too_long(name):
            yield statements.count("\n", 0, found.start()) + 1, name
