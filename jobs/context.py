"""What an effect is made with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onefold.jobs.protocols import Objects


@dataclass(frozen=True)
class Context:
    """What the function that makes an effect is given.

    Attributes:
        pipeline: its name.
        dsn: of the database with the pipeline's tables.
        client: librdkafka settings, for a producer or a consumer of its own.
        objects: opens the store of objects.
        home: a folder that the effect may write to.
    """

    pipeline: str
    dsn: str
    client: Mapping[str, str]
    objects: Callable[[], Objects]
    home: Path
