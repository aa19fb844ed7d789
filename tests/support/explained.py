"""A processed pipeline whose tables are filled without Spark, with explanations of rows."""

import json
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from onefold.config.settings import Settings
from onefold.operate.explain import explain as explaining
from onefold.operate.explain.explanation import Explanation
from onefold.operate.record_reader import RECORDS_MAX
from onefold.processor.core.topology import Topology
from tests.support.processes import drained, instance, produce


class Explained:
    """Runner of a processor and of `explain`."""

    def __init__(self, topology: Topology, client: dict[str, str], dsn: str, folder: Path) -> None:
        self.topology = topology
        self.client = client
        self.dsn = dsn
        self.folder = folder
        self.settings = Settings(bootstrap_servers=client["bootstrap.servers"], postgres_dsn=dsn)

    def fold(self, *batches: list[dict[str, Any]], key: str = "id", partition: int = -1, **options: Any) -> None:
        """Process batch after batch: each is completely in the log, and processed, before the next."""
        with instance(self.topology, self.client, self.folder / "processor", **options):
            for values in batches:
                keyed = [(str(value[key]).encode(), json.dumps(value).encode()) for value in values]
                produce(self.client, self.topology.inputs[0], [*keyed], partition)
                drained(self.topology, self.client)

    def explain(self, table: str, limit: int = 10, records_max: int = RECORDS_MAX, **key: str) -> Explanation:
        """Explain a row."""
        return explaining.explain(
            self.settings, self.dsn, table, key, limit=limit, records_max=records_max, patience_s=20
        )

    def forget(self, topic: str, partition: int, before: int) -> None:
        """Delete the records before an offset, as retention does."""
        admin = AdminClient({**self.client})
        for answer in admin.delete_records([TopicPartition(topic, partition, before)]).values():
            answer.result()


def send(campaign: int, day: int, sent: int, version: int = 0, **more: Any) -> dict[str, Any]:
    """An event of the pipeline campaigns."""
    date = f"2021-12-{day:02} 12:00:00"
    return {"id": campaign, "date": date, "sent": sent, "email": "A", "subject": "s", "version": version, **more}
