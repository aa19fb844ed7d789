"""Are these still the topics whose records Postgres holds? Asked at every start, before anything is read.

Kafka itself says nothing when a topic was deleted and made anew, or when its log was cut and written again: offsets
are just numbers, and readers go on in the middle of other data.
"""

from onefold.error_codes import Code
from onefold.spark_sink.decisions import Decided, log_of, refuse_closed
from onefold.spark_sink.errors import Refused
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.landing.ledger import OffsetRange, Partition, Position
from onefold.spark_sink.landing.protocols import Reach, Topics
from onefold.spark_sink.postgres.connection import Connection


def recognise(
    connection: Connection, sink: str, writer: str, topics: Topics, names: list[str]
) -> tuple[dict[Partition, int], dict[str, str]]:
    """The next offset of every partition of the topics `names`, and their ids, after every check.

    Partitions that are new get a row in the ledger.

    Raises:
        Refused: a topic is not what it was.
        Waiting: Kafka does not answer, or a topic is not there.
    """
    ids = topics.ids(names)
    reach = topics.reach(names)
    stored = ledger.positions(connection, sink)
    for key, position in sorted(stored.items()):
        if key[0] in ids:
            _check(key, position, ids[key[0]], reach.get(key), topics)
    for key in sorted(reach.keys() - stored.keys()):
        ledger.open_partition(connection, sink, key, reach[key].start, ids[key[0]], writer)
    now = ledger.positions(connection, sink)
    return {key: now[key].next_offset for key in reach}, ids


def choose_source(connection: Connection, sink: str, writer: str, topics: Topics, decided: bool) -> None:
    """Before `recognise`: are the tables filled from what this sink would read? In a new ledger the first sink says so.

    Args:
        decided: this sink would read the decision log, and not the output topics.

    Raises:
        Refused: they are filled from the other one; or the beginning of the log is gone, and with it what came true by it.
        Waiting: Kafka does not answer, or has no decision log yet.
    """
    log = log_of(sink)
    stored = ledger.positions(connection, sink)
    known = {partition for topic, partition in stored if topic == log}
    if not decided:
        if known:
            raise Refused(
                Code.TABLES_OF_OTHER_TOPICS,
                f"the tables of {sink} are filled from {log}, and cannot be filled from its output topics as well: start its "
                f"replicas again, or start {sink} over, see `onefold docs operating`",
            )
        return
    topic_id = topics.ids([log])[log]
    new = {key[1]: reach for key, reach in topics.reach([log]).items() if key[1] not in known}
    for partition, reach in sorted(new.items()):
        if reach.start > 0:
            raise Refused(
                Code.RECORDS_DELETED,
                f"{log}/{partition} begins at offset {reach.start}: what came true before cannot be known from it; "
                f"leave decided_tables out, or start {sink} over, or restore a backup of Postgres that knows it",
            )
    if new:
        ledger.open_log(connection, sink, topic_id, sorted(new), writer)


def decided_at(
    connection: Connection, sink: str, topics: Topics, start: dict[Partition, int]
) -> tuple[dict[Partition, int], dict[Partition, Decided]]:
    """The next offset of every partition of the decision log, and what all records below it amount to, as of one moment.

    Raises:
        Refused: a task is not decided in the log any more, and nothing new is there.
    """
    now = ledger.positions(connection, sink)
    log = log_of(sink)
    ends = topics.reach([log])
    refuse_closed(log, {key[1]: now[key].decided for key in start if now[key].next_offset >= ends[key].end})
    return {key: now[key].next_offset for key in start}, {key: now[key].decided for key in start}


def ahead(topics: Topics, start: dict[Partition, int], ids: dict[str, str]) -> list[OffsetRange]:
    """What there is to be read now; of a partition in which nothing is new its last record, the likest to what will come."""
    reaches = topics.reach(sorted(ids))
    return [
        OffsetRange(*key, min(at, reaches[key].end - 1), reaches[key].end, ids[key[0]])
        for key, at in sorted(start.items())
        if reaches[key].start < reaches[key].end
    ]


def same_topics(topics: Topics, ids: dict[str, str]) -> None:
    """Asked after a batch was read and before it is landed.

    An id never comes back: when it is still the old one now, every record of the batch came from the old topic.

    Raises:
        Refused: it is another one.
    """
    for topic, topic_id in topics.ids(sorted(ids)).items():
        if topic_id != ids[topic]:
            raise Refused(Code.TOPIC_RECREATED, _made_anew(topic, ids[topic], topic_id))


def _check(key: Partition, position: Position, topic_id: str, reach: Reach | None, topics: Topics) -> None:
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


def _check_last(name: str, key: Partition, position: Position, reach: Reach, topics: Topics) -> None:
    """The last record landed must still be there, unless retention or compaction may have removed it."""
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
