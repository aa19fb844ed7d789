"""What the sink tells Kafka's Java client, and what it reads from Spark's checkpoint."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_sink import checkpoint
from spark_sink.errors import Misconfigured, Rewind
from spark_sink.session import java_client_options


def test_librdkafka_settings_reach_the_java_client() -> None:
    options = java_client_options(
        "k:1",
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "ann",
            "sasl.password": "secret",
            "ssl.ca.location": "/ca.pem",
        },
    )
    assert options == {
        "bootstrap.servers": "k:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ann" password="secret";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
    }


def test_an_unknown_kafka_option_is_never_dropped_silently() -> None:
    with pytest.raises(Misconfigured, match=r"'socket\.timeout\.ms' is not known"):
        java_client_options("k:1", {"socket.timeout.ms": "1"})


@pytest.mark.parametrize(
    "content", [None, "", "v1\n{}\n", "v1\n{}\nnot json", "v1\n{}\n[1]", 'v1\n{}\n{"t": 5}', 'v1\n{}\n{"t": {"x": 1}}']
)
def test_a_garbled_note_of_spark_means_start_again(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "offsets").mkdir()
    if content is not None:
        (tmp_path / "offsets" / "3").write_text(content)
    with pytest.raises(Rewind, match="checkpoint was lost or damaged"):
        checkpoint.ends(tmp_path, 3)


def test_only_checkpoints_of_dead_processes_are_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (f"me.{gone.pid}", f"me.{os.getppid()}", f"you.{gone.pid}"):
        (tmp_path / name).mkdir()
    made = checkpoint.fresh(tmp_path, "me", "domain", 7)
    assert made.is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {f"me.{os.getppid()}", f"you.{gone.pid}", f"me.{os.getpid()}"}
