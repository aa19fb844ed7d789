"""In which order the records of several inputs were folded. Between topics Kafka promises none: it is decided while it happens,
and whoever works the results out again has to know it.

A pipeline with several inputs has a topic `<name>.order`, with a record for each transaction in the partition of its task:

    {"version": 1, "runs": [["shop.orders", 0, 3], ["shop.payments", 0, 1], ["shop.orders", 3, 4]]}

Each run holds the topic and the offsets [first, last + 1) of records that were folded one after the other. It is written in
the transaction that commits them, and nothing of it is ever compacted.
"""

import json
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from onefold.processor.core.values import Record

VERSION = 1


def encode(records: Iterable[Record]) -> bytes:
    """The value for one transaction, of its records in the order in which they were folded."""
    runs = []
    for topic, run in groupby(records, attrgetter("topic")):
        offsets = [record.offset for record in run]
        runs.append((topic, offsets[0], offsets[-1] + 1))
    return json.dumps({"version": VERSION, "runs": runs}, separators=(",", ":")).encode()
