"""The broker's container refuses what a newer Kafka has written, as the embedded broker does (`test_embedded`)."""

import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("made", "refused"), [("", True), ("4.3.0", True), ("4.10.0", True), ("4.2.9", False), ("3.9.1", False)]
)
def test_a_volume_that_a_newer_kafka_has_written_is_refused_with_a_sentence(
    checkout: Path, tmp_path: Path, made: str, refused: bool
) -> None:
    """The script of the image, in folders of its own, with a Java that says what it was given."""
    for folder in ("libs", "config", "kafka/data", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "libs" / "kafka_2.13-4.2.2.jar").touch()
    (tmp_path / "config" / "server.properties").touch()
    (tmp_path / "kafka" / "data" / "meta.properties").touch()
    if made:
        (tmp_path / "kafka" / "data" / "kafka.version").write_text(f"{made}\n", encoding="utf-8")
    java = tmp_path / "bin" / "java"
    java.write_text('#!/bin/sh\necho "runs: $*"\n', encoding="utf-8")
    java.chmod(0o755)
    script = (checkout / "images" / "kafka" / "start").read_text(encoding="utf-8")
    for path, here in (
        ("/opt/kafka", tmp_path),
        ("/var/lib/kafka", tmp_path / "kafka"),
        ("/tmp/server.", tmp_path / "server."),
    ):
        script = script.replace(path, str(here))
    ran = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={"PATH": f"{java.parent}:/usr/bin:/bin"},
    )

    assert (ran.returncode == 3) == refused, ran.stderr
    if refused:
        assert f"written by Kafka {made or '4.3.1'}, and Kafka 4.2.2 does not read them" in ran.stderr
        assert "runs: " not in ran.stdout
    else:
        assert "kafka.Kafka" in ran.stdout
