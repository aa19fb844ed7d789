"""How the verifier asks Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NamedTuple

from onefold.proof.log import Log
from onefold.proof.record import Source
from onefold.proof.replays import read as read_replays


class Kafka(NamedTuple):
    """How a judge asks Kafka: for topics, and for the receipts of replayed dead letters."""

    log: Callable[[dict[str, Any], Iterable[str]], Log] = Log
    receipts: Callable[[dict[str, Any], str, Mapping[str, str]], Set[Source]] = read_replays


KAFKA = Kafka()
