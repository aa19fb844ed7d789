"""Exponential backoff."""

# Two to this power exceeds every maximum wait. Without the bound, a long series of failures ends in an OverflowError.
_DOUBLINGS_MAX = 30


def backoff_s(first_s: float, longest_s: float, failures: int) -> float:
    """Seconds before the next try: `first_s` after the first failure in a row, doubled by each further, up to `longest_s`."""
    return min(longest_s, first_s * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS_MAX))
