"""Whose record it is: which `onefold-` headers count, and which records of an input are not this pipeline's to process.

Anybody writes to an input: another pipeline whose output it is, a mirror of another cluster, a program that copies headers. The
headers of a copy or a replay count only if this pipeline has written them on this cluster, which it says in a header.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter, methodcaller
from typing import NamedTuple

from onefold.processor.core.values import (
    DROPPED_HEADER,
    OWN_HEADERS,
    REPLAYS_HEADER,
    SOURCE_HEADER,
    TIMESTAMP_HEADER,
    Envelope,
    Record,
)

#: Header of copies, replays and dead letters: which pipeline wrote them, on which cluster and in which of its lives, as
#: `cluster id/pipeline/topic id of the changelog`. A reset begins another life.
PIPELINE_HEADER = "onefold-pipeline"

_envelope, _headers = itemgetter(5), methodcaller("headers")


class _Foreign(NamedTuple):
    """The envelope of a record whose `onefold-` headers say nothing about it."""

    envelope: Envelope

    def timestamp(self) -> tuple[int, int]:
        return self.envelope.timestamp()

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [header for header in self.envelope.headers() or () if not header[0].startswith(OWN_HEADERS)] or None


class Owner:
    """A pipeline on a cluster: signs what it writes into topics where others write too, and recognizes it again.

    Args:
        cluster_id: Kafka's own id of the cluster.
        pipeline: its name.
        life: the topic id of its changelog; "": any.
    """

    def __init__(self, cluster_id: str, pipeline: str, life: str = "") -> None:
        self._cluster = f"{cluster_id}/".encode()
        self._pipeline = self._cluster + f"{pipeline}/".encode()
        #: The value of `PIPELINE_HEADER`.
        self.signature = self._pipeline + life.encode()

    def of(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records that this pipeline processes, each with its envelope, which shows no `onefold-` headers of others.

        Left out is what another pipeline of this cluster put into the same topic, a copy or a replay, and a copy or a drop of
        this one's before it was reset. Each is for another's states alone, and its original lies in the topic as well.
        """
        if not any(map(_headers, map(_envelope, records))):
            return records
        return [found for record in records if (found := self._of(record)) is not None]

    def wrote(self, topic: str, headers: Iterable[tuple[str, bytes | None]]) -> bool:
        """Whether these headers are of a copy or a replay that this pipeline put into `topic`: they name a place in it. Headers
        of a release without `PIPELINE_HEADER` say no more than that.
        """
        own = _own(headers)
        signed = own.get(PIPELINE_HEADER)
        if signed is None:
            return _is_copy(own, topic) or _is_replay(own, topic)
        return (_is_copy(own, topic) and signed.startswith(self.signature)) or (
            _is_replay(own, topic) and self.signed(signed)
        )

    def copied(self, topic: str, headers: Iterable[tuple[str, bytes | None]]) -> tuple[bytes, bytes] | None:
        """The place of the original and the signature, where these headers are of a copy that this pipeline put into `topic` in
        any of its lives; None: they are not, or of a release without `PIPELINE_HEADER`.
        """
        own = _own(headers)
        signed = own.get(PIPELINE_HEADER)
        if signed is None or not self.signed(signed) or not _is_copy(own, topic):
            return None
        return own[SOURCE_HEADER], signed

    def signed(self, signature: bytes) -> bool:
        """Whether this pipeline has signed so, in any of its lives."""
        return signature.startswith(self._pipeline)

    def _of(self, record: Record) -> Record | None:
        headers = record.envelope.headers() if record.envelope is not None else None
        own, topic = _own(headers or ()), record.topic
        if TIMESTAMP_HEADER not in own and REPLAYS_HEADER not in own:
            return record
        if self.wrote(topic, own.items()) and (
            DROPPED_HEADER not in own or (own.get(PIPELINE_HEADER) or b"").startswith(self.signature)
        ):
            return record
        here = (own.get(PIPELINE_HEADER) or b"").startswith(self._cluster)
        if here and (_is_copy(own, topic) or _is_replay(own, topic)):
            return None
        assert record.envelope is not None, "it has headers"
        return record._replace(envelope=_Foreign(record.envelope))


def _own(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, bytes]:
    """The last of each name, as Kafka's own clients choose. One without a value says nothing."""
    last = {name: value for name, value in headers if name.startswith(OWN_HEADERS)}
    return {name: value for name, value in last.items() if value is not None}


def _is_copy(own: dict[str, bytes], topic: str) -> bool:
    return TIMESTAMP_HEADER in own and _lies_in(topic, own.get(SOURCE_HEADER))


def _is_replay(own: dict[str, bytes], topic: str) -> bool:
    return _lies_in(topic, own.get(REPLAYS_HEADER))


def _lies_in(topic: str, place: bytes | None) -> bool:
    named, *numbers = (place or b"").rsplit(b"/", 2)
    return named == topic.encode() and len(numbers) == 2 and all(map(bytes.isdigit, numbers))
