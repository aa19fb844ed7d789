"""The replication of the topics created by Onefold."""

from __future__ import annotations

from dataclasses import dataclass

#: The number for the brokers' default in librdkafka and Kafka.
BROKERS_DEFAULT = -1


@dataclass(frozen=True)
class Replication:
    """The replication of a new topic. None is the brokers' default. Existing topics stay unchanged.

    Attributes:
        factor: The replicas of each partition.
        in_sync: The replicas that must have a record before Kafka's acknowledgement, `min.insync.replicas`.
    """

    factor: int | None = None
    in_sync: int | None = None

    @property
    def replicas(self) -> int:
        """The factor as a number for Kafka."""
        return BROKERS_DEFAULT if self.factor is None else self.factor

    @property
    def config(self) -> dict[str, str]:
        """The settings of the topic, by Kafka's names."""
        return {} if self.in_sync is None else {"min.insync.replicas": str(self.in_sync)}


#: The brokers' defaults.
AS_BROKERS = Replication()
