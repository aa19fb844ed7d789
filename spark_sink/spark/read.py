"""From Kafka to lines: a streaming DataFrame whose rows are ready for COPY, all topics of a domain in one pass.

Decoding, checking and writing out as CSV happen in the JVM, in generated code; Python only moves buffers. Each row:

    target       where the line goes: a topic, or REJECTED
    topic, partition, offset   the record
    fingerprint  CRC-32 by which the record can be recognised again
    at_ms        the record's timestamp, in milliseconds since 1970
    line         one line of CSV, newline included, in the order of the target's columns

Records of topics that are reduced have no line and no target yet: they are in a column `record_<n>` instead, from which
`reduce` makes lines when the whole batch is there.
"""

import json

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import from_avro

from onefold.spark_sink import contracts
from onefold.spark_sink.contracts import ORIGIN, REJECTED, Domain, StagedRecord
from onefold.spark_sink.landing.ledger import Partition

# The same as topics.Record.fingerprint.
FINGERPRINT = (
    "crc32(concat(coalesce(key, X''), coalesce(value, X''), cast(cast(unix_millis(timestamp) AS string) AS binary)))"
)

# A batch often ends on a transaction marker, at the end of the log. Spark then polls once more to see that nothing
# follows, and the broker would hold that poll for as long as its default says, for every partition, one after the other:
# most of a batch would be waiting.
_END_OF_LOG_WAIT_MS = "1"

# A pipeline that reads an output of this one puts copies of what lies in the wrong partition for it there as well.
_IS_NO_COPY = "headers IS NULL OR NOT exists(headers, header -> header.key = 'onefold-pipeline')"

# Fewer, larger polls: Kafka's default costs throughput.
_RECORDS_PER_POLL = "5000"

# How long Kafka may be silent before the query gives up and is started again, with a reason to show.
_SILENCE_MS = "15000"

# A body that does not parse gives a record of nulls: one bad record must not end the query. Dates before 1582 are those
# of the calendar that Avro, Postgres and Python have, and not an error.
_AVRO = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}

# Years of six digits, or Spark would put a plus before the 10,000th; the era, or there would be none before the first.
_DATE, _TIME = "yyyyyy-MM-dd", "HH:mm:ss.SSSSSS"
_FORMATS = {
    "date": f"{_DATE} G",
    "timestamp with time zone": f"{_DATE} {_TIME} G",
    "timestamp without time zone": f"{_DATE} {_TIME} G",
}
# Spelled in quotes, because anything may stand in them.
_TEXTS = ("text", "uuid")
# Of a day Spark first makes a moment, in microseconds, for which 64 bits last to the year 294,247; more days than these
# would end the query. Postgres's own dates begin in 4713 BC, and its moments end in 294,276.
_DAYS_MAX = 106_751_991
# Postgres takes 24:00:00 for a time of day as well; Avro does not.
_DAY_US = 86_400_000_000


def stream(
    spark: SparkSession, domain: Domain, kafka_options: dict[str, str], start: dict[Partition, int], max_offsets: int
) -> DataFrame:
    """The committed records of all topics of `domain`, from the offsets `start` on, as rows to be staged.

    `kafka_options` are those of Kafka's Java client. A batch holds at most about `max_offsets` records.
    """
    records = (
        spark.readStream.format("kafka")
        .options(**{f"kafka.{name}": value for name, value in kafka_options.items()})
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.fetch.max.wait.ms", _END_OF_LOG_WAIT_MS)
        .option("kafka.max.poll.records", _RECORDS_PER_POLL)
        .option("kafka.request.timeout.ms", _SILENCE_MS)
        .option("kafka.default.api.timeout.ms", _SILENCE_MS)
        .option("kafkaConsumer.pollTimeoutMs", _SILENCE_MS)
        .option("subscribe", ",".join(domain.contracts))
        .option("startingOffsets", _starting_offsets(start))
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", str(max_offsets))
        .option("includeHeaders", "true")
        .load()
    )
    return lines(records.where(_IS_NO_COPY), domain)


def lines(records: DataFrame, domain: Domain) -> DataFrame:
    """Make rows to be staged of records in the shape of Kafka's reader."""
    numbered = list(enumerate(domain.contracts.items()))
    topic_read = sf.col("topic")
    decoded = [_decoded(topic_read == topic, contract).alias(_record(number)) for number, (topic, contract) in numbered]
    flawed = [sf.when(topic_read == topic, _flaw(_record(number), contract)) for number, (topic, contract) in numbered]
    written = [
        sf.when(topic_read == topic, sf.expr(_csv(_fields(_record(number), contract))))
        for number, (topic, contract) in numbered
        if topic in domain.targets
    ]
    kept = [
        sf.when(sf.col("flaw").isNull(), sf.col(_record(number))).alias(_record(number))
        for number, (topic, _) in numbered
        if topic in domain.reduced
    ]
    reduced, flaw = topic_read.isin(domain.reduced), sf.col("flaw")
    rejected = sf.expr(_csv([_quoted(f"'{domain.name}'"), _quoted("flaw"), _hex("value")]))
    at_ms = sf.expr("unix_millis(timestamp)").alias("at_ms")
    read = [
        *(sf.col(name) for name in ("topic", "partition", "offset", "value")),
        sf.expr(FINGERPRINT).alias("fingerprint"),
        at_ms,
        *decoded,
    ]
    checked = [sf.col("*"), sf.coalesce(*flawed).alias("flaw")]
    made = [
        sf.when(flaw.isNotNull(), REJECTED).when(~reduced, topic_read).alias("target"),
        *(sf.col(name) for name in ("topic", "partition", "offset", "fingerprint", "at_ms")),
        sf.when(flaw.isNotNull(), rejected).otherwise(sf.coalesce(*written, sf.lit(None))).alias("line"),
        *kept,
    ]
    return records.select(*read).select(*checked).select(*made)


def record_column(domain: Domain, topic: str) -> str:
    """The column that holds the records of a topic that is reduced."""
    return _record(list(domain.contracts).index(topic))


def no_records(spark: SparkSession, contract: StagedRecord) -> DataFrame:
    """The fields of the contract as columns, and no rows."""
    nothing = sf.lit(None).cast("binary")
    return spark.range(0).select(from_avro(nothing, contract.schema, _AVRO).alias("record")).select("record.*")


def csv_line(cells: list[str]) -> str:
    """One line of CSV, as Spark SQL: a cell that is null stays empty."""
    filled = ", ".join(f"coalesce({cell}, '')" for cell in cells)
    return rf"concat(concat_ws(',', {filled}), '\n')"


def cell(name: str, column: contracts.StagingColumn) -> str:
    """The value of a column, or of a field of one, as it stands in CSV; as Spark SQL. The session's time zone is UTC."""
    if column.postgres_type in _TEXTS:
        return _quoted(name)
    if column.postgres_type == "bytea":
        return _hex(name)
    if column.postgres_type == "time without time zone":
        return f"date_format(timestamp_micros({_micros(name, column)}), '{_TIME}')"
    if column.postgres_type in _FORMATS:
        return f"date_format({name}, '{_FORMATS[column.postgres_type]}')"
    return f"cast({name} AS string)"


def _micros(name: str, column: contracts.StagingColumn) -> str:
    """Spark has no time of day: it is the number that Avro has."""
    return f"(cast({name} AS bigint) * {1000 if column.millis else 1})"


def _starting_offsets(start: dict[Partition, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in start.items():
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics)


def _record(number: int) -> str:
    return f"record_{number}"


def _decoded(is_of_it: Column, contract: StagedRecord) -> Column:
    """The record, null when it is of another topic, or the value opens with no header of the contract's.

    What was written with an earlier schema is read with that one, and resolved by Avro's rules to that of today.
    """
    body = sf.expr(f"substring(value, {len(contract.header) + 1})")
    record = sf.when(is_of_it & _opens(contract.header), from_avro(body, contract.schema, _AVRO))
    for header, was in contract.earlier.items():
        resolved = from_avro(body, was, {**_AVRO, "avroSchema": contract.schema})
        record = record.when(is_of_it & _opens(header), resolved)
    return record


def _opens(header: bytes) -> Column:
    return sf.expr(f"substring(value, 1, {len(header)}) = X'{header.hex()}'")


def _flaw(record: str, contract: StagedRecord) -> Column:
    """Why the record cannot be landed; null when it can."""
    texts = [sf.col(f"{record}.`{column.name}`") for column in contract.columns if column.postgres_type in _TEXTS]
    flaw = (
        sf.when(sf.col("value").isNull(), "the record has no value")
        .when(sf.col(record).isNull(), f"not an Avro single object of {contract.name} as avro/ has it")
        .when(sf.col(f"{record}.{contract.required[0]}").isNull(), f"the body is no {contract.name}")
    )
    for text in texts:
        flaw = flaw.when(sf.contains(text, sf.lit("\0")), "a text holds a NUL, which Postgres cannot store")
        flaw = flaw.when(~sf.is_valid_utf8(text), "a text is not valid UTF-8")
    for column in contract.columns:
        if column.postgres_type == "time without time zone":
            micros = sf.expr(_micros(f"{record}.`{column.name}`", column))
            flaw = flaw.when((micros < 0) | (micros >= _DAY_US), f"{column.name} is no time of a day")
        if column.postgres_type == "date":
            days = sf.unix_date(sf.col(f"{record}.`{column.name}`"))
            flaw = flaw.when((days < -_DAYS_MAX) | (days > _DAYS_MAX), f"{column.name} is out of range for a date")
    return flaw


def _fields(record: str, contract: StagedRecord) -> list[str]:
    """The record's fields as CSV cells."""
    return [cell(f"{record}.`{column.name}`", column) for column in contract.columns]


def _csv(cells: list[str]) -> str:
    """One line: the cells, then the record's origin. Numbers and hex digits need no quotes."""
    return csv_line([*cells, *(cell(column.name, column) for column in ORIGIN)])


def _quoted(text: str) -> str:
    """An empty text stays distinct from null, which has no quotes."""
    return f"""concat('"', replace({text}, '"', '""'), '"')"""


def _hex(path: str) -> str:
    return rf"concat('\\x', hex({path}))"
