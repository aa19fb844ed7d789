"""What an effect is made with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from onefold.jobs.objects.guarded import Guarded
from onefold.jobs.protocols import Objects

if TYPE_CHECKING:
    from onefold.jobs.writer import RecordWriter


def _nobody_asks() -> None:
    """Where no worker has a session, as in a test of an effect."""


@dataclass(frozen=True)
class Context:
    """What the function that makes an effect is given.

    Attributes:
        pipeline: its name.
        dsn: of the database with the pipeline's tables.
        client: librdkafka settings, for a producer or a consumer of its own.
        objects: opens the store of objects.
        home: a folder that the effect may write to.
        still: raises an exception when the session in the database has ended of the worker, or of the reset: the pipeline may
            have been started over since, and what is at hand be of before. Ask it right before what cannot be taken back.
    """

    pipeline: str
    dsn: str
    client: Mapping[str, str]
    objects: Callable[[], Objects]
    home: Path
    # A default that is a function would be a method of the class.
    still: Callable[[], None] = field(default_factory=lambda: _nobody_asks)

    def held_by(self, still: Callable[[], None]) -> "Context":
        """The same for a worker with a session. It is asked whether that is there: before each write to the store, and of what
        `writer` writes after Kafka has the record and before anybody sees it.
        """
        return replace(self, still=still, objects=lambda: Guarded(self.objects(), still))

    def writer(self) -> "RecordWriter":
        """Writes records to Kafka, as reports of what was done. What it writes for a job of before a reset nobody sees."""
        from onefold.jobs.writer import RecordWriter  # effects that write none need no client of Kafka

        return RecordWriter(self.client, self.still)
