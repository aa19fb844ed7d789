"""How large records are, about, by a look at some of them: Kafka tells how many there are, and not how many bytes."""

from collections.abc import Iterable
from itertools import islice

from onefold.spark_sink.landing.ledger import OffsetRange
from onefold.spark_sink.landing.protocols import Records

# Two questions to Kafka for each, one after the other, some milliseconds together: enough for a mean that is only about right.
_PARTITIONS = 8


def mean_bytes(records: Records, ranges: Iterable[OffsetRange]) -> float:
    """Bytes of a value: of the first record and the one in the middle, of so many ranges. 0 where there are none."""
    places = [(part, at) for part in islice(ranges, _PARTITIONS) for at in (part.start, (part.start + part.end) // 2)]
    found = [records.record_from(part.topic, part.partition, at) for part, at in places]
    sizes = [len(record.value or b"") for record in found if record is not None]
    return sum(sizes) / max(1, len(sizes))
