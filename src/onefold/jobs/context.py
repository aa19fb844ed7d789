"""The context for the creation of an effect."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from onefold.jobs.objects.guarded import Guarded
from onefold.jobs.protocols import Objects

if TYPE_CHECKING:
    from onefold.jobs.writer import RecordWriter


def _nobody_asks() -> None:
    """Check no session, for example in a test of an effect without a worker."""


@dataclass(frozen=True)
class Context:
    """The argument of an effect's factory function.

    Attributes:
        pipeline: the pipeline's name.
        dsn: the DSN of the database with the pipeline's tables.
        client: librdkafka settings for the effect's own producer or consumer.
        objects: opens the store of objects.
        home: a folder writable for the effect.
        still: raises an exception if the database session of the worker or the reset has ended. The pipeline may then have been
            reset, and the current job may be obsolete. Call `still` immediately before each irreversible action.
    """

    pipeline: str
    dsn: str
    client: Mapping[str, str]
    objects: Callable[[], Objects]
    home: Path
    # A default factory, because a function as the default would be a method of the class.
    still: Callable[[], None] = field(default_factory=lambda: _nobody_asks)

    def held_by(self, still: Callable[[], None]) -> "Context":
        """Return the context with the session check `still`.

        The store calls `still` before each write, and `writer` calls `still` between sending and committing a record.
        """
        return replace(self, still=still, objects=lambda: Guarded(self.objects(), still))

    def writer(self) -> "RecordWriter":
        """Return a writer for records in Kafka, for example reports of done jobs.

        After a reset, no reader sees a record written for a job from before the reset.
        """
        from onefold.jobs.writer import RecordWriter  # imported here, because other effects need no Kafka client

        return RecordWriter(self.client, self.still)
