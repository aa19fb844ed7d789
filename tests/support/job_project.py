"""A project with one queue, whose effect writes a line per job to a file. A test produces the jobs itself."""

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.jobs.protocols import Job, Place
from onefold.pipelines import JOB_FIELDS
from onefold.processor.io import contracts
from onefold.processor.io.avro_encoder import encoder
from tests.support.command_line import Onefold
from tests.support.waiting import eventually

_TOPOLOGY = """
from onefold import Topology

TOPOLOGY = Topology(
    "{name}", ("{name}.orders",), lambda order: order.id, dict, lambda state, event: (state, ()), {{"{name}.mails": None}}
)
"""

# Each line is synced like a checkpoint; `stands` can look up the line later, as in any effect.
_EFFECT = """
import os
from pathlib import Path

from onefold.effects import OnceEach, Refuse

SENT = Path({sent!r})


class Mails(OnceEach):
    def do(self, job):
        if job.value["text"] == "refuse":
            raise Refuse("nobody has this address")
        while (SENT / "held").exists():
            pass
        with (SENT / "mails").open("a") as file:
            file.write(f"{{self.key(job)}} {{job.value['text']}}\\n")
            file.flush()
            os.fsync(file.fileno())
        return "sent"

    def stands(self, job, result):
        return self.key(job) in (SENT / "mails").read_text()


def mails(context):
    assert context.dsn and context.client and context.pipeline == "{name}"
    return Mails()
"""


class Project:
    """A project in a separate folder, on the tests' broker and database."""

    def __init__(self, folder: Path, client: dict[str, str], dsn: str) -> None:
        self.name = f"j{uuid.uuid4().hex[:8]}"
        self.queue = f"{self.name}.mails"
        self.client = client
        self._dsn = dsn
        self.sent = folder / "sent"
        self.folder = folder / "project"
        for made in (self.sent, self.folder / "avro", self.folder / "sql"):
            made.mkdir(parents=True)
        table = f'topology = "{self.name}:TOPOLOGY"\njobs = {{"{self.queue}" = "{self.name}_mails:mails"}}\n'
        (self.folder / "pyproject.toml").write_text(
            f"[tool.onefold]\npackages = []\n[tool.onefold.pipelines.{self.name}]\n{table}", encoding="utf-8"
        )
        (self.folder / f"{self.name}.py").write_text(_TOPOLOGY.format(name=self.name), encoding="utf-8")
        effect = _EFFECT.format(name=self.name, sent=str(self.sent))
        (self.folder / f"{self.name}_mails.py").write_text(effect, encoding="utf-8")
        fields = [{"name": name, "type": kind} for name, kind in {**JOB_FIELDS, "text": "string"}.items()]
        record = {"type": "record", "name": "Mail", "namespace": self.name, "fields": fields, "topics": [self.queue]}
        order = {
            **record,
            "name": "Order",
            "fields": [{"name": "id", "type": "string"}],
            "topics": [f"{self.name}.orders"],
        }
        for one in (record, order):
            (self.folder / "avro" / f"{one['name']}.avsc").write_text(json.dumps(one), encoding="utf-8")
        contract = contracts.load(self.folder / "avro")[self.queue]
        self._encode = encoder(contract.schema, contract.prefix)
        admin = AdminClient({**client})
        admin.create_topics([NewTopic(self.queue, 2)])[self.queue].result()
        (folder / "home").mkdir()
        self.onefold = Onefold(folder / "home")
        self.onefold.environment |= {
            "ONEFOLD_BOOTSTRAP_SERVERS": client["bootstrap.servers"],
            "ONEFOLD_POSTGRES_DSN": dsn,
            "ONEFOLD_PROJECT": str(self.folder),
            "ONEFOLD_STATUS_FILE": str(folder / "status.json"),
        }

    def put(self, jobs: Sequence[tuple[str, int, str]]) -> None:
        """Produce jobs, each (log_id, entry, text)."""
        producer = Producer({**self.client, "partitioner": "murmur2_random"})
        for log_id, entry, text in jobs:
            fields = {"log_id": log_id, "segment": 0, "entry": entry, "text": text}
            producer.produce(self.queue, self._encode(fields), log_id.encode())
        assert producer.flush(20) == 0

    def job(self, log_id: str, entry: int) -> Job:
        return Job(self.queue, log_id, Place(0, entry))

    def key(self, log_id: str, entry: int) -> str:
        return f"{self.queue}/{log_id}/0/{entry}"

    def mails(self) -> list[str]:
        """Keys of the sent mails, in order."""
        file = self.sent / "mails"
        return [line.split()[0] for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []

    def until_done(self, count: int) -> None:
        """Wait until exactly `count` jobs of the queue are done."""

        def done() -> bool:
            with psycopg.connect(self._dsn) as connection:
                found = connection.execute("SELECT count(*) FROM onefold.done WHERE queue = %s", (self.queue,))
                return found.fetchone() == (count,)

        eventually(done, 60, f"{count} jobs are done")

    def until_sent(self, *keys: str) -> None:
        eventually(lambda: set(keys) <= set(self.mails()), 60, f"{keys} are sent, of which {self.mails()} are")
