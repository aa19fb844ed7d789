"""Checks that the topics in Kafka are the source of the rows in Postgres, at every start before reading.

Kafka reports no error after a topic was recreated, or after its log was truncated and written again. A reader would continue at
the same offset with other data.
"""

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.landing.ledger import LedgerPosition, Partition
from onefold.spark_sink.landing.protocols import Reach, TopicInfo
from onefold.spark_sink.postgres.connection import Connection


def recognise(
    connection: Connection, sink: str, writer: str, topics: TopicInfo, names: list[str]
) -> tuple[dict[Partition, int], dict[str, str]]:
    """Check the topics `names`, and return the next offset of every partition and the topic ids.

    New partitions get a row in the ledger.

    Raises:
        Refused: a topic has changed, or a decision log has filled the tables.
        Retriable: Kafka does not respond, or a topic is missing.
    """
    stored = _positions(connection, sink)
    ids = topics.ids(names)
    reach = topics.reach(names)
    for key, position in sorted(stored.items()):
        if key[0] in ids:
            _check(key, position, ids[key[0]], reach.get(key), topics)
    for key in sorted(reach.keys() - stored.keys()):
        ledger.open_partition(connection, sink, key, reach[key].start, ids[key[0]], writer)
    now = _positions(connection, sink)
    return {key: now[key].next_offset for key in reach}, ids


def same_topics(topics: TopicInfo, ids: dict[str, str]) -> None:
    """Check the topic ids after reading a batch and before its transaction.

    Kafka never reuses an id. If the id is unchanged, every record of the batch came from the same topic.

    Raises:
        Refused: a topic has another id.
    """
    for topic, topic_id in topics.ids(sorted(ids)).items():
        if topic_id != ids[topic]:
            raise Refused(Code.TOPIC_RECREATED, _made_anew(topic, ids[topic], topic_id))


def _positions(connection: Connection, sink: str) -> dict[Partition, LedgerPosition]:
    """Read the positions of the output topics.

    Raises:
        Refused: an earlier Onefold has filled the tables from the decision log. Its offsets are not comparable with the output
            topics' offsets.
    """
    stored = ledger.positions(connection, sink)
    log = f"{sink}.decisions"
    if any(topic == log for topic, _ in stored):
        raise Refused(
            Code.TABLES_OF_OTHER_TOPICS,
            f"the rows of {sink} come from the decision log {log}, and this version writes rows from output topics only: "
            f"run `onefold rebuild {sink}`",
        )
    return stored


def _check(key: Partition, position: LedgerPosition, topic_id: str, reach: Reach | None, topics: TopicInfo) -> None:
    name = f"{key[0]}/{key[1]}"
    if position.topic_id != topic_id:
        raise Refused(Code.TOPIC_RECREATED, _made_anew(key[0], position.topic_id, topic_id))
    if reach is None:
        raise Refused(Code.PARTITIONS_CHANGED, f"Postgres holds records of {name}, and Kafka has no such partition")
    if position.next_offset > reach.end:
        raise Refused(
            Code.RECORDS_LOST,
            f"{name} ends at offset {reach.end}, but Postgres holds everything below {position.next_offset}: "
            "Kafka lost records; see `onefold docs operating`",
        )
    if position.next_offset < reach.start:
        raise Refused(
            Code.RECORDS_DELETED,
            f"{name} begins at offset {reach.start}, but Postgres needs {position.next_offset} next: "
            "Kafka deleted records before the sink wrote them; see `onefold docs operating`",
        )
    _check_last(name, key, position, reach, topics)


def _check_last(name: str, key: Partition, position: LedgerPosition, reach: Reach, topics: TopicInfo) -> None:
    """Check the last written record. The record must exist, unless retention or compaction may have removed the record."""
    last = position.last_record
    if last is None or last.offset < reach.start:
        return
    found = topics.fingerprint_at(*key, last)
    if found == last.fingerprint or (found is None and topics.is_compacted(key[0])):
        return
    raise Refused(
        Code.TOPIC_RECREATED,
        f"the record at {name}, offset {last.offset}, is not the one that was written: "
        "the topic was recreated; see `onefold docs operating`",
    )


def _made_anew(topic: str, old: str, new: str) -> str:
    return (
        f"topic {topic} was deleted and recreated (id {new}, Postgres holds records of {old}): "
        "its offsets belong to other records now; see `onefold docs operating`"
    )
