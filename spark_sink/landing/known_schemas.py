"""Checks that avro/ has every schema of the pipeline's written records.

The sink would reject records of an unknown schema, and totals would be wrong without them. Postgres therefore stores each
schema that a sink could read. The sink checks the schemas at every start before reading, and before each batch, because a sink
and processors of a newer version may start in the meantime. If processors were upgraded first, the sink detects the new schema
from their records.
"""

from collections.abc import Iterable

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused, Retriable
from onefold.processor.core.values import SOURCE_HEADER
from onefold.schema_history import SINGLE_OBJECT
from onefold.spark_sink.contracts import Domain
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.landing.protocols import Records
from onefold.spark_sink.landing.staging_tables import Opened
from onefold.spark_sink.postgres.connection import Connection

# The maximum number of records per batch read again to identify the producer. With more, an operator must decide.
_ASKED_MAX = 1_000

#: The schemas as JSON, by topic and header.
Schemas = dict[tuple[str, bytes], str]


def recognise(connection: Connection, domain: Domain) -> None:
    """Store the current and earlier schemas of `domain` in Postgres.

    Before the first written record, delete the stored schemas missing in avro/, because no table has records of them.

    Raises:
        Refused: avro/ lacks a stored schema, and the sink has written records.
    """
    known = schemas(domain)
    forgotten = _unknown(connection, domain, known)
    if forgotten and any(position.last_record for position in ledger.positions(connection, domain.name).values()):
        topic, header = min(forgotten)
        raise Refused(
            Code.SCHEMA_UNKNOWN,
            f"{topic} has records of a schema that avro/ does not have (fingerprint {header[2:].hex()}): if a newer version "
            f"of {domain.name} wrote them, start that version's sink; if the schema was changed here, "
            f"`onefold contracts {domain.name} --restore` puts the earlier one into avro/earlier/",
        )
    with connection.cursor() as cursor:
        cursor.executemany(
            "DELETE FROM onefold.contract WHERE sink = %s AND topic = %s AND header = %s",
            [(domain.name, topic, header) for topic, header in sorted(forgotten)],
        )
        cursor.executemany(
            "INSERT INTO onefold.contract (sink, topic, header, schema) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
            [(domain.name, topic, header, schema) for (topic, header), schema in sorted(known.items())],
        )


def refuse_newer(connection: Connection, domain: Domain) -> None:
    """Refuse the next batch if a newer sink has stored an unknown schema.

    In an upgrade, the sinks start before the processors, so the newer sink stores a schema before the first record.

    Raises:
        Refused: a sink with more schemas has started in the meantime.
    """
    if unknown := _unknown(connection, domain, schemas(domain)):
        topic, header = min(unknown)
        raise Refused(
            Code.SCHEMA_UNKNOWN,
            f"a sink of another version of {domain.name} has started, which knows a schema of {topic} that this one does not "
            f"(fingerprint {header[2:].hex()}): that sink continues alone",
        )


def refuse_written(domain: Domain, set_aside: Iterable[Opened], records: Records) -> None:
    """Refuse a batch with a processor's records of an unknown schema. Totals would be wrong without these records.

    The sink rejects records of other producers.

    Args:
        set_aside: the rejected records with a header of Avro's single-object encoding.
        records: reads the records to check their headers.

    Raises:
        Refused: a processor wrote one of the records, or the batch has too many such records.
        Retriable: Kafka does not respond, or no longer has a record.
    """
    known = {header for _, header in schemas(domain)}
    unknown = [one for one in set_aside if one.header not in known]
    for number, (topic, partition, offset, header) in enumerate(unknown):
        if number < _ASKED_MAX:
            record = records.record_from(topic, partition, offset)
            if record is None or record.offset != offset:
                raise Retriable(
                    Code.RECORDS_DELETED,
                    f"Kafka does not have {topic}/{partition}@{offset} any more, which was just read",
                )
            if SOURCE_HEADER not in record.headers:  # a processor writes the header to each output record
                continue
            what = f"a processor's record at offset {offset}"
        else:
            what = f"more than {_ASKED_MAX:,} records, up to offset {offset},"
        fingerprint = header.removeprefix(SINGLE_OBJECT).hex()
        raise Refused(
            Code.SCHEMA_UNKNOWN,
            f"{topic}/{partition} has {what} of a schema that this sink does not know (fingerprint {fingerprint}): start the "
            f"sink of the version that wrote it; if that version was given up, put its schema into avro/earlier/, or reject its "
            f"records with ONEFOLD_ALLOW=unknown_contracts",
        )


def _unknown(connection: Connection, domain: Domain, known: Schemas) -> set[tuple[str, bytes]]:
    rows = connection.execute("SELECT topic, header FROM onefold.contract WHERE sink = %s", (domain.name,)).fetchall()
    return {(topic, header) for topic, header in rows if topic in domain.contracts and (topic, header) not in known}


def schemas(domain: Domain) -> Schemas:
    """The current and earlier schemas in avro/ of the topics of `domain`."""
    return {
        (topic, header): schema
        for topic, contract in domain.contracts.items()
        for header, schema in {contract.header: contract.schema, **contract.earlier}.items()
    }


def stored(connection: Connection, sink: str) -> Schemas:
    """The schemas of `sink` stored in Postgres."""
    rows = connection.execute("SELECT topic, header, schema FROM onefold.contract WHERE sink = %s", (sink,)).fetchall()
    return {(topic, header): schema for topic, header, schema in rows}


def forget(connection: Connection, sink: str) -> None:
    """Delete the stored schemas of `sink`, in the caller's transaction, which empties the tables and deletes the positions."""
    if connection.execute("SELECT to_regclass('onefold.contract')").fetchone() != (
        None,
    ):  # else no sink has stored a schema in this database
        connection.execute("DELETE FROM onefold.contract WHERE sink = %s", (sink,))
