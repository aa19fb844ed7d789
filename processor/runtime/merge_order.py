"""The recorded merge order of several inputs.

Kafka guarantees no order between topics. A verifier that recomputes the results needs the order of the processor.

A pipeline with several inputs has a topic `<name>.order`. Each transaction writes one record to the partition of the task:

    {"version": 1, "runs": [["shop.orders", 0, 3], ["shop.payments", 0, 1], ["shop.orders", 3, 4]]}

Each run holds the topic and the offsets [first, last + 1) of consecutively processed records. The transaction that commits the
records also writes the order. The topic is never compacted.
"""

import json
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from onefold.processor.core.values import Record

VERSION = 1


def encode(records: Iterable[Record]) -> bytes:
    """Encode the merge order of one transaction; `records` are in processing order."""
    runs = []
    for topic, run in groupby(records, attrgetter("topic")):
        offsets = [record.offset for record in run]
        runs.append((topic, offsets[0], offsets[-1] + 1))
    return json.dumps({"version": VERSION, "runs": runs}, separators=(",", ":")).encode()
