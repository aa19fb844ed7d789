"""A clock under the control of a test."""


class Clock:
    """Clock in seconds, which changes only when the test sets `now`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
