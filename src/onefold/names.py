"""The names that PostgreSQL, Kafka and Spark can hold: of pipelines, topics, tables and columns.

Each function returns what is wrong with a name, as the end of a sentence that begins with the name's owner, or "".
"""

import re
from collections.abc import Iterable, Iterator

#: PostgreSQL's NAMEDATALEN less one. It cuts longer names without an error.
POSTGRES_BYTES_MAX = 63
#: Kafka's limit: a partition's folder is named by the topic.
TOPIC_CHARACTERS_MAX = 249

# Columns that every table of PostgreSQL has already.
_SYSTEM_COLUMNS = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
# Schemas that are PostgreSQL's, or hold what no pipeline has made, or the sink's staging tables.
_SCHEMAS = {"information_schema", "public", "onefold_stage"}
_KAFKAS_OWN = {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PIPELINE = re.compile(r"[a-z_][a-z0-9_]*")
# What an SQL file is made of, as far as names go: comments and texts, which may hold anything, and names, in quotes or without.
_PIECE = re.compile(
    r"""--[^\n]*|/\*.*?\*/|[eE]'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$"""
    r"""|"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^\W\d][\w$]*)""",
    re.DOTALL,
)


def fault_of_pipeline(name: str) -> str:
    """Of the name of a pipeline, which is also a schema and the first word of its topics."""
    if not _PIPELINE.fullmatch(name):
        return "a name has small letters, digits and _, because a schema and topics have it too"
    if name in _SCHEMAS or name.startswith("pg_"):
        return "the pipeline's schema would have that name, and that schema is not the pipeline's; rename the pipeline"
    return too_long(name)


def fault_of_column(name: str, others: Iterable[str]) -> str:
    """Of the name of a column in PostgreSQL, beside others that the sink adds."""
    if name in _SYSTEM_COLUMNS:
        return "has the name of a column that each table of PostgreSQL has already"
    return added(name, others) or too_long(name)


def added(name: str, others: Iterable[str]) -> str:
    """Of any column that must not be one of those that the sink adds."""
    return "has the name of a column that the sink adds itself" if name in others else ""


def too_long(name: str) -> str:
    """Of any name in PostgreSQL."""
    size = len(name.encode())
    if size <= POSTGRES_BYTES_MAX:
        return ""
    return f"has a name of {size} bytes, and PostgreSQL cuts names at {POSTGRES_BYTES_MAX}"


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two names that differ by case only, which Spark takes for one."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) != name:
            return other, name
    return None


def fault_of_topic(topic: str) -> str:
    """Of the name of a topic."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        return "has a name that Kafka refuses: a topic's name has letters of ASCII, digits, '.', '_' and '-'"
    if len(topic) > TOPIC_CHARACTERS_MAX:
        return f"has a name of {len(topic)} characters, and Kafka takes {TOPIC_CHARACTERS_MAX}"
    if topic in _KAFKAS_OWN:
        return "is a topic of Kafka itself"
    return ""


def metric_name(topic: str) -> str:
    """The name by which Kafka keeps the metrics of a topic. Kafka refuses a second topic with the same one."""
    return topic.replace(".", "_")


def too_long_in(statements: str) -> Iterator[tuple[int, str]]:
    """The names in an SQL text that PostgreSQL would cut, each with its line; those in the bodies of functions are not seen."""
    for found in _PIECE.finditer(statements):
        name = (found["quoted"] or found["plain"] or "").replace('""', '"')
        if too_long(name):
            yield statements.count("\n", 0, found.start()) + 1, name
