"""How often Kafka keeps what lies in the topics that Onefold makes."""

from __future__ import annotations

from dataclasses import dataclass

#: librdkafka's and Kafka's number for "as the brokers are set".
BROKERS_DEFAULT = -1


@dataclass(frozen=True)
class Replication:
    """Of a new topic. What is None is as the brokers are set. Topics that exist stay as they are.

    Attributes:
        factor: replicas of each partition.
        in_sync: replicas that must have a record before Kafka acknowledges it, `min.insync.replicas`.
    """

    factor: int | None = None
    in_sync: int | None = None

    @property
    def replicas(self) -> int:
        """The factor as Kafka takes it."""
        return BROKERS_DEFAULT if self.factor is None else self.factor

    @property
    def config(self) -> dict[str, str]:
        """The settings of the topic, by Kafka's names."""
        return {} if self.in_sync is None else {"min.insync.replicas": str(self.in_sync)}


#: As the brokers are set.
AS_BROKERS = Replication()
