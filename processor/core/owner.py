"""Find out which pipeline wrote a record: which `onefold-` headers are valid, and which input records a pipeline must skip.

Any producer may write to an input: another pipeline, a mirror of another cluster, a program that copies headers. The headers of
a copy or a replay are valid only if this pipeline wrote them on this cluster. `PIPELINE_HEADER` names both.
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

#: Header of copies, replays and dead letters: the writing pipeline, as `cluster id/pipeline/topic id of the changelog`.
#: A reset creates a new changelog, and with the new topic id begins another life of the pipeline.
PIPELINE_HEADER = "onefold-pipeline"

_envelope, _headers = itemgetter(5), methodcaller("headers")


class _Foreign(NamedTuple):
    """The envelope of a record whose `onefold-` headers are not valid, without these headers."""

    envelope: Envelope

    def timestamp(self) -> tuple[int, int]:
        return self.envelope.timestamp()

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [header for header in self.envelope.headers() or () if not header[0].startswith(OWN_HEADERS)] or None


class Owner:
    """A pipeline on a cluster: signs copies, replays and dead letters, and recognizes its own signature.

    Args:
        cluster_id: Kafka's id of the cluster.
        pipeline: the pipeline's name.
        life: the topic id of the pipeline's changelog; "": any life.
    """

    def __init__(self, cluster_id: str, pipeline: str, life: str = "") -> None:
        self._cluster = f"{cluster_id}/".encode()
        self._pipeline = self._cluster + f"{pipeline}/".encode()
        #: The value of `PIPELINE_HEADER`.
        self.signature = self._pipeline + life.encode()

    def of(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records that this pipeline processes, each with its envelope. The envelope of a copy or replay from
        elsewhere hides the `onefold-` headers.

        The result omits the copies and replays of other pipelines on this cluster, and this pipeline's copies and drops from
        before a reset. Such a record serves other states only, and the topic holds the original as well.
        """
        if not any(map(_headers, map(_envelope, records))):
            return records
        return [found for record in records if (found := self._of(record)) is not None]

    def wrote(self, topic: str, headers: Iterable[tuple[str, bytes | None]]) -> bool:
        """Return whether the headers are of this pipeline's copy or replay in `topic`. A copy must be from this life, a replay
        may be from any. Without `PIPELINE_HEADER`, as in earlier releases, a place in `topic` is enough.
        """
        own = _own(headers)
        signed = own.get(PIPELINE_HEADER)
        if signed is None:
            return _is_copy(own, topic) or _is_replay(own, topic)
        return (_is_copy(own, topic) and signed.startswith(self.signature)) or (
            _is_replay(own, topic) and self.signed(signed)
        )

    def copied(self, topic: str, headers: Iterable[tuple[str, bytes | None]]) -> tuple[bytes, bytes] | None:
        """Return the original's place and the signature, if the headers are of this pipeline's copy in `topic`, from any life.

        None: no such copy, or headers of a release without `PIPELINE_HEADER`.
        """
        own = _own(headers)
        signed = own.get(PIPELINE_HEADER)
        if signed is None or not self.signed(signed) or not _is_copy(own, topic):
            return None
        return own[SOURCE_HEADER], signed

    def signed(self, signature: bytes) -> bool:
        """Return whether the signature is this pipeline's, from any life."""
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
    """Return the last value of each `onefold-` header, as Kafka's own clients choose, without null values."""
    last = {name: value for name, value in headers if name.startswith(OWN_HEADERS)}
    return {name: value for name, value in last.items() if value is not None}


def _is_copy(own: dict[str, bytes], topic: str) -> bool:
    return TIMESTAMP_HEADER in own and _lies_in(topic, own.get(SOURCE_HEADER))


def _is_replay(own: dict[str, bytes], topic: str) -> bool:
    return _lies_in(topic, own.get(REPLAYS_HEADER))


def _lies_in(topic: str, place: bytes | None) -> bool:
    named, *numbers = (place or b"").rsplit(b"/", 2)
    return named == topic.encode() and len(numbers) == 2 and all(map(bytes.isdigit, numbers))
