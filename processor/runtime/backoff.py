"""How long to wait before the next try."""

# Two to this power is beyond every longest wait; without the bound a long trouble ends in an OverflowError.
_DOUBLINGS_MAX = 30


def backoff_s(first_s: float, longest_s: float, failures: int) -> float:
    """Seconds before the next try, after so many failures in a row: `first_s` after one, twice as long after each more."""
    return min(longest_s, first_s * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS_MAX))
