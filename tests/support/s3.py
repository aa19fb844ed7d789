"""A real S3 server for the session, with objects in files, and an empty bucket for each test.

S3Proxy is a product (docs/decisions/objects-and-snapshots.md): it checks signatures, decides `If-None-Match: *` by a link
of the file system, separates unfinished uploads, and lists by pages.
"""

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from onefold.stack import jars, java
from onefold.stack.child import Child
from onefold.stack.embedded import default_cache
from onefold.stack.ports import free_ports
from onefold.stack.service import Ready, SupervisedService
from tests.support.waiting import eventually

KEY, SECRET = "onefold-tests", "not-a-secret"
# As for the broker, a small server. Streams do not use the heap.
_FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOGGING = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>%d %msg%n</pattern></encoder></appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


@dataclass(frozen=True)
class S3Server:
    """Address and data folder of the server."""

    endpoint: str
    data: Path

    def client(self) -> Any:
        """A boto3 client, for direct access by a test."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )


@dataclass(frozen=True)
class Bucket:
    """An empty bucket: address of a store within, server, and environment for a process."""

    name: str
    url: str
    server: S3Server
    environment: dict[str, str]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server. The data are deleted with the session."""
    home = tmp_path_factory.mktemp("s3")
    server = S3Server(f"http://127.0.0.1:{free_ports(1)[0]}", home / "data")
    server.data.mkdir()
    (home / "logback.xml").write_text(_LOGGING, encoding="utf-8")
    (home / "s3proxy.properties").write_text(
        f"s3proxy.endpoint={server.endpoint}\ns3proxy.authorization=aws-v2-or-v4\n"
        f"s3proxy.identity={KEY}\ns3proxy.credential={SECRET}\n"
        # The file provider needs no login, but requires names.
        f"jclouds.provider=filesystem-nio2\njclouds.identity=none\njclouds.credential=none\n"
        f"jclouds.filesystem.basedir={server.data}\n",
        encoding="utf-8",
    )
    child = Child(_service(home))
    child.start()
    try:
        eventually(lambda: _answers(server, child), 60, f"the S3 server listens; its log is {child.service.log}")
        yield server
    finally:
        child.stop()


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket, with its key in the environment."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    client = s3_server.client()
    client.create_bucket(Bucket=name)
    environment = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    for variable in [found for found in os.environ if found.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    return Bucket(name, f"s3://{name}/some/prefix", s3_server, environment)


def _service(home: Path) -> SupervisedService:
    found = java.locate(default_cache())
    paths = jars.ensure("s3", default_cache(), found.executable)
    argv = (
        str(found.executable),
        *_FLAGS,
        f"-Dlogback.configurationFile={home / 'logback.xml'}",
        "-cp",
        ":".join(map(str, paths)),
        "org.gaul.s3proxy.Main",
        "--properties",
        str(home / "s3proxy.properties"),
    )
    return SupervisedService("s3", argv, home / "s3.log", Ready("done"))


def _answers(server: S3Server, child: Child) -> bool:
    assert child.running(), f"the S3 server ended: {child.service.log.read_text(encoding='utf-8')}"
    client = server.client()
    try:
        client.list_buckets()
    except (BotoCoreError, ClientError):
        return False
    return True
