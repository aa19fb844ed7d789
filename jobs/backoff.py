"""How long a job that was deferred waits: twice as long each time, up to a bound, by dice."""

# Two to this power is beyond every longest wait; without the bound a long trouble ends in an OverflowError.
_DOUBLINGS_MAX = 30


def backoff_s(first_s: float, longest_s: float, retries: int, dice: float) -> float:
    """Seconds to wait after so many retries. Full jitter: many that were deferred at once do not come back at once.

    Args:
        first_s: the longest wait after the first retry.
        longest_s: the longest wait of all.
        retries: from 1 on.
        dice: from 0.0 to 1.0, any value as likely as any other.
    """
    return dice * min(longest_s, first_s * 2.0 ** min(max(retries - 1, 0), _DOUBLINGS_MAX))
