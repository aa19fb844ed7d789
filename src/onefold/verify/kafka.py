"""The verifier's access to Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from onefold.verify.log import Log
from onefold.verify.replays import Receipts
from onefold.verify.replays import read as read_replays
from onefold.verify.writer_identity import WriterIdentity


class Kafka(NamedTuple):
    """The functions for reading topics, and the receipts of replayed and dropped dead letters."""

    log: Callable[[dict[str, Any], Iterable[str]], Log] = Log
    receipts: Callable[[dict[str, Any], WriterIdentity, Mapping[str, str]], Receipts] = read_replays


KAFKA = Kafka()
