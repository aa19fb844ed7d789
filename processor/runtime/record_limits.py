"""Whether what a proposal writes fits into its topics.

A proposal may be larger than any of them takes. What is in it is written when it was decided, by a publisher, to whom it is the
truth: what does not fit then is in everybody's way for ever. So it is looked at before, when its record can still be set aside.
"""

from collections.abc import Callable, Iterable, Mapping

from onefold.error_codes import Code
from onefold.processor.core.abc import Write
from onefold.processor.core.errors import TooMuch

# What a record alone takes beside key, value and headers: 61 bytes of its batch, and at most 30 of its own.
_ENVELOPE_BYTES = 100
# A header, beside its name and value: two lengths.
_HEADER_BYTES = 10


class Sizes:
    """Of the records of one task.

    Args:
        ask: asks the cluster how many bytes a record may have, per topic that the task writes to.
    """

    def __init__(self, ask: Callable[[], Mapping[str, int]]) -> None:
        self._ask = ask
        self._limits = ask()

    def check(self, together: int, writes: Iterable[Write]) -> None:
        """Raises `TooMuch` when one of these is larger than its topic takes. Uncompressed: how small the client will make it is
        not known.

        Args:
            together: they have no more bytes than that, all of them. Nearly always it is enough to know.
        """
        if together + _ENVELOPE_BYTES <= min(self._limits.values()):
            return
        sizes = [(topic, _size(key, value, headers or ())) for topic, _, key, value, headers in writes]
        if any(size > self._limits[topic] for topic, size in sizes):
            self._limits = self._ask()  # somebody may have raised them
        for topic, size in sizes:
            if size > self._limits[topic]:
                raise TooMuch(
                    Code.TOO_LARGE,
                    f"{topic} takes records of {self._limits[topic]:,} bytes, and one of {size:,} came of it",
                )


def _size(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> int:
    traced = sum(_HEADER_BYTES + len(name) + len(text or b"") for name, text in headers)
    return _ENVELOPE_BYTES + len(key or b"") + len(value or b"") + traced
