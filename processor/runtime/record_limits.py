"""The check that the records of a proposal fit into their topics.

The decision log may accept a proposal with a record that is too large for an output topic. A publisher must write all accepted
records, so an oversized record would block publishing for ever. The check comes before the append, when the input record can
still become a dead letter.
"""

from collections.abc import Callable, Iterable, Mapping

from onefold.error_codes import Code
from onefold.processor.core.abc import Write
from onefold.processor.core.errors import TooMuch

# Upper bound of a single record's overhead beside key, value and headers: 61 bytes for the batch and at most 30 for the record.
_ENVELOPE_BYTES = 100
# Upper bound of a header's overhead beside name and value: two lengths.
_HEADER_BYTES = 10


class Sizes:
    """The size limits of one task's records.

    Args:
        ask: reads from the cluster the maximum bytes of a record, for each topic that the task writes to.
    """

    def __init__(self, ask: Callable[[], Mapping[str, int]]) -> None:
        self._ask = ask
        self._limits = ask()

    def check(self, together: int, writes: Iterable[Write]) -> None:
        """Raise `TooMuch` if a record is too large for the topic. Sizes are uncompressed: the compressed size is unknown here.

        Args:
            together: an upper bound of the total bytes of all records. In most cases the bound alone suffices.
        """
        if together + _ENVELOPE_BYTES <= min(self._limits.values()):
            return
        sizes = [(topic, _size(key, value, headers or ())) for topic, _, key, value, headers in writes]
        if any(size > self._limits[topic] for topic, size in sizes):
            self._limits = self._ask()  # an administrator may have raised the limits
        for topic, size in sizes:
            if size > self._limits[topic]:
                raise TooMuch(
                    Code.TOO_LARGE,
                    f"{topic} takes records of {self._limits[topic]:,} bytes, and one of {size:,} came of it",
                )


def _size(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> int:
    traced = sum(_HEADER_BYTES + len(name) + len(text or b"") for name, text in headers)
    return _ENVELOPE_BYTES + len(key or b"") + len(value or b"") + traced
