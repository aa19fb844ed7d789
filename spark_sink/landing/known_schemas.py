"""Does avro/ still know every contract whose records this sink has landed? Asked at every start, before anything is read, and
before each batch: a sink of a newer version may have started beside this one, and processors of that one after it. Where
processors were upgraded first, their own records say so.

Records of one that it does not know would be set aside as none, and totals would be wrong without them. So each contract that
a sink could read is kept in Postgres.
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

# Of so many records of a batch it asks who wrote them, each of which takes some milliseconds. With more, a person decides.
_ASKED_MAX = 1_000

#: Of (topic, header) the schema, as JSON.
Schemas = dict[tuple[str, bytes], str]


def recognise(connection: Connection, domain: Domain) -> None:
    """Keep the contracts of `domain`, and those that they were.

    Where nothing has landed yet, a contract may be forgotten: records of it are in no table.

    Raises:
        Refused: one that was landed is not in avro/ any more, or not yet.
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
    """Before a batch. Whoever reads starts before whoever writes, so what a newer sink knows is here before its records are.

    Raises:
        Refused: a sink that knows more contracts has started since.
    """
    if unknown := _unknown(connection, domain, schemas(domain)):
        topic, header = min(unknown)
        raise Refused(
            Code.SCHEMA_UNKNOWN,
            f"a sink of another version of {domain.name} has started, which knows a schema of {topic} that this one does not "
            f"(fingerprint {header[2:].hex()}): that sink continues alone",
        )


def refuse_written(domain: Domain, set_aside: Iterable[Opened], records: Records) -> None:
    """Before a batch. What a stranger wrote is set aside; what a processor wrote is of a contract that this sink does not know,
    and totals would be wrong without it.

    Args:
        records: by the places that `set_aside` names.

    Raises:
        Refused: a processor wrote one of them, or there are too many to be asked for.
        Retriable: Kafka does not say who wrote one.
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
            if SOURCE_HEADER not in record.headers:  # each output of a processor has this header
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
    """What avro/ knows of the topics of `domain`: the contracts of today and before."""
    return {
        (topic, header): schema
        for topic, contract in domain.contracts.items()
        for header, schema in {contract.header: contract.schema, **contract.earlier}.items()
    }


def stored(connection: Connection, sink: str) -> Schemas:
    """What Postgres knows."""
    rows = connection.execute("SELECT topic, header, schema FROM onefold.contract WHERE sink = %s", (sink,)).fetchall()
    return {(topic, header): schema for topic, header, schema in rows}


def forget(connection: Connection, sink: str) -> None:
    """Forget all that Postgres knows, inside the caller's transaction, which empties the tables and forgets what was landed."""
    if connection.execute("SELECT to_regclass('onefold.contract')").fetchone() != (
        None,
    ):  # else no sink has kept any here
        connection.execute("DELETE FROM onefold.contract WHERE sink = %s", (sink,))
