"""What is said of an error in one sentence."""

import pytest

from onefold.spark_sink.errors import sentence

# As Spark has it of a task whose Python has raised something while it handled something else.
OF_A_TASK = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/a/worker.py", line 12, in copy
    copy.write(lines)
psycopg.OperationalError: consuming input failed: it went away
server closed the connection unexpectedly

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/a/worker.py", line 2044, in main
    process()
psycopg.errors.IdleInTransactionSessionTimeout: terminating connection due to idle-in-transaction timeout

"""


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
        ("", "ValueError"),
        ("  it is wrong \nat line 3", "it is wrong"),
        (OF_A_TASK, OF_A_TASK.strip().splitlines()[-1]),
        ("the task is lost\nTraceback (most recent call last):\n  File", "the task is lost"),
    ],
)
def test_an_error_is_said_in_one_sentence(text: str, said: str) -> None:
    assert sentence(ValueError(text)) == said
