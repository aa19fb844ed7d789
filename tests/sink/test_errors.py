"""What is said of an error in one sentence."""

import psycopg
import pytest

from onefold.spark_sink.errors import ErrorReaction, may_blame_a_row, sentence, verdict

# As Spark has it of Kafka's client.
OF_KAFKA = """An error occurred while calling o58.collectToPython.
: java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed
\tat org.apache.spark.sql.kafka010.KafkaOffsetReaderAdmin.fetch(KafkaOffsetReaderAdmin.scala:1)
Caused by: org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed
Caused by: javax.net.ssl.SSLHandshakeException: (certificate_expired) PKIX path validation failed
\tat java.base/sun.security.ssl.Alert.createSSLException(Alert.java:1)
Caused by: java.security.cert.CertificateExpiredException: NotAfter: Fri Nov 27 14:00:00 UTC 2026
\t... 32 more
"""
FORBIDDEN = (
    "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [runner.distances]"
)
# As py4j has it of a job that an executor failed; `{}` is what the executor has met.
FAILED = """An error occurred while calling o1452.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, \
most recent failure: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 3): {}
\tat java.base/java.io.ObjectStreamClass$FieldReflector.setObjFieldValues(ObjectStreamClass.java:2227)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$abortStage$3(DAGScheduler.scala:2935)
Caused by: java.lang.RuntimeException: of the driver
"""
NO_CONNECTOR = "java.lang.ClassCastException: cannot assign instance of SerializedLambda"
LOST = "ExecutorLostFailure (executor 3 exited) Reason: Command exited with code 137"
STOPPED = """An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.
: java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.
This stopped SparkContext was created at:
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            OF_KAFKA,
            "Kafka's client in Spark: CertificateExpiredException: NotAfter: Fri Nov 27 14:00:00 UTC 2026",
        ),
        (
            f"[STREAM_FAILED] Query [id = 1] terminated with exception: {FORBIDDEN}\n=== Streaming Query ===",
            "Kafka's client in Spark: TopicAuthorizationException: Not authorized to access topics: [runner.distances]",
        ),
        (
            FAILED.format(NO_CONNECTOR),
            "Spark, executor 3 on 10.0.0.7: ClassCastException: cannot assign instance of SerializedLambda",
        ),
        (FAILED.format(LOST), f"Spark, executor 3 on 10.0.0.7: {LOST}"),
        (FAILED.format(LOST).replace("10.0.0.7 executor 3", "localhost executor driver"), f"Spark: {LOST}"),
        (
            FAILED.format(f"{NO_CONNECTOR}\nCaused by: java.io.IOException: disk full"),
            "Spark, executor 3 on 10.0.0.7: IOException: disk full",
        ),
        (
            FAILED.format(FORBIDDEN),
            f"Kafka's client in Spark, executor 3 on 10.0.0.7: {FORBIDDEN.removeprefix('org.apache.kafka.common.errors.')}",
        ),
        (STOPPED, "Spark: IllegalStateException: Cannot call methods on a stopped SparkContext."),
        ("", "ValueError"),
        ("  it is wrong \nat line 3", "it is wrong"),
    ],
)
def test_an_error_is_said_in_one_sentence(text: str, said: str) -> None:
    assert sentence(ValueError(text)) == said


@pytest.mark.parametrize(
    ("wanted", "states"),
    [
        (
            ErrorReaction.ROW,
            "21000 22001 22P02 2201E 23502 23505 23514 23P01 44000 54000 54001 P0001 P0004 38000 39004 20000 27000",
        ),
        (ErrorReaction.RETRY, "25006 25P03 40001 40P01 53100 53300 55P03 57014 57P01 58030 08006 26000 28P01"),
        (ErrorReaction.STOP, "0A000 25001 3F000 42501 42601 42703 42P01 42P10 2200H 55006 55P04 58P01 XX001 XX002"),
        (ErrorReaction.UNKNOWN, "XX000 55000 72000 F0000 HV000 24000 2D000"),
    ],
    ids=str,
)
def test_each_sqlstate_has_one_answer(wanted: ErrorReaction, states: str) -> None:
    """Outside of functions. What no row may have caused is never looked for in rows."""
    for state in states.split():
        error = _of(state)
        assert (state, verdict(error)) == (state, wanted)
        assert may_blame_a_row(error) == (wanted in (ErrorReaction.ROW, ErrorReaction.UNKNOWN)), state


def _of(state: str) -> psycopg.Error:
    error = psycopg.Error("no")
    error.sqlstate = state
    return error


@pytest.mark.parametrize("error", [psycopg.OperationalError("gone"), psycopg.InterfaceError("closed")])
def test_a_lost_connection_passes(error: psycopg.Error) -> None:
    """It has no SQLSTATE."""
    assert verdict(error) is ErrorReaction.RETRY
