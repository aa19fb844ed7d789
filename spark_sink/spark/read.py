"""Reads all topics of a pipeline from Kafka in one pass, as a streaming DataFrame with rows for COPY.

The JVM decodes and checks the records, and formats CSV, in generated code. Python only moves buffers. The columns of a row:

    target       The line's target: a topic, or REJECTED.
    topic, partition, offset   The place of the record.
    fingerprint  CRC-32 to identify the record later.
    at_ms        The record's timestamp, in milliseconds since 1970.
    line         One line of CSV, with newline, in the order of the target's columns.

Valid records of reduced topics have no line and no target. Their rows have a column `record_<n>` instead, and `reduce` makes
lines from the whole batch.
"""

import json

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import from_avro

from onefold.spark_sink import contracts
from onefold.spark_sink.contracts import ORIGIN, REJECTED, Domain, StagedRecord
from onefold.spark_sink.landing.ledger import Partition

# Equal to `KafkaRecord.fingerprint`.
FINGERPRINT = (
    "crc32(concat(coalesce(key, X''), coalesce(value, X''), cast(cast(unix_millis(timestamp) AS string) AS binary)))"
)

# A batch often ends with a transaction marker at the end of the log. Spark then polls again, once per partition in sequence.
# With the default, the broker would delay each poll, and a batch would mostly wait.
_END_OF_LOG_WAIT_MS = "1"

# A pipeline reading this topic as an input also writes repartitioned records into the topic.
_IS_NO_COPY = "headers IS NULL OR NOT exists(headers, header -> header.key = 'onefold-pipeline')"

# Above Kafka's default: fewer, larger polls have a higher throughput.
_RECORDS_PER_POLL = "5000"

# After this time in milliseconds without a response from Kafka, the query fails and the supervisor restarts the query.
_SILENCE_MS = "15000"

# An invalid body gives a record of nulls, because one invalid record must not end the query. Dates before 1582 are valid, in
# the calendar of Avro, Postgres and Python.
_AVRO = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}

# Six digits for the year, because Spark would otherwise write a plus sign from year 10,000 on. The era marks years before 1.
_DATE, _TIME = "yyyyyy-MM-dd", "HH:mm:ss.SSSSSS"
_FORMATS = {
    "date": f"{_DATE} G",
    "timestamp with time zone": f"{_DATE} {_TIME} G",
    "timestamp without time zone": f"{_DATE} {_TIME} G",
}
# In quotes, because a text may have any characters.
_TEXTS = ("text", "uuid")
# Spark converts a date to a timestamp in microseconds with 64 bits, up to the year 294,247. A greater date would end the query.
# Postgres's dates begin in 4713 BC, and its timestamps end in the year 294,276.
_DAYS_MAX = 106_751_991
# Postgres also accepts 24:00:00 as a time of day. Avro does not.
_DAY_US = 86_400_000_000


def stream(
    spark: SparkSession, domain: Domain, kafka_options: dict[str, str], start: dict[Partition, int], max_offsets: int
) -> DataFrame:
    """Stream the committed records of all topics of `domain`, from the offsets `start`, as rows for the staging tables.

    `kafka_options` are settings of Kafka's Java client. A batch covers at most about `max_offsets` offsets.
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
    """Convert records of Spark's Kafka reader to rows for the staging tables."""
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
    """The name of the column with the records of a reduced topic."""
    return _record(list(domain.contracts).index(topic))


def no_records(spark: SparkSession, contract: StagedRecord) -> DataFrame:
    """Return an empty DataFrame with the schema's fields as columns."""
    nothing = sf.lit(None).cast("binary")
    return spark.range(0).select(from_avro(nothing, contract.schema, _AVRO).alias("record")).select("record.*")


def csv_line(cells: list[str]) -> str:
    """Return a Spark SQL expression for one line of CSV. A null cell stays empty."""
    filled = ", ".join(f"coalesce({cell}, '')" for cell in cells)
    return rf"concat(concat_ws(',', {filled}), '\n')"


def cell(name: str, column: contracts.StagingColumn) -> str:
    """Return a Spark SQL expression for the value of a column or field in CSV. The session's time zone is UTC."""
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
    """Return an expression for a time of day in microseconds. Spark has no such type, and reads Avro's number."""
    return f"(cast({name} AS bigint) * {1000 if column.millis else 1})"


def _starting_offsets(start: dict[Partition, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in start.items():
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics)


def _record(number: int) -> str:
    return f"record_{number}"


def _decoded(is_of_it: Column, contract: StagedRecord) -> Column:
    """The decoded record. Null for a record of another topic, or a value without a header of the record type.

    Avro's schema resolution converts a record of an earlier schema to the current schema.
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
    """The reason to reject the record, or null."""
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
    """The expressions for the record's fields as CSV cells."""
    return [cell(f"{record}.`{column.name}`", column) for column in contract.columns]


def _csv(cells: list[str]) -> str:
    """The expression for one line: the cells, then the record's origin. Numbers and hex digits need no quotes."""
    return csv_line([*cells, *(cell(column.name, column) for column in ORIGIN)])


def _quoted(text: str) -> str:
    """The expression for a text in quotes. Null has no quotes, so an empty text stays distinct from null."""
    return f"""concat('"', replace({text}, '"', '""'), '"')"""


def _hex(path: str) -> str:
    return rf"concat('\\x', hex({path}))"
