"""How often the continuous verifier looks, asks and saves a checkpoint, and how much it takes in one step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """Intervals and step sizes of a continuous verifier.

    Attributes:
        look_every_s: the interval between looks at the tables. A mismatch must be named within five seconds: two readings and
            two looks must fit in.
        look_every_max_s: the longest interval between looks, also if looks are expensive.
        ask_every_s: the interval between checks of the topic ids. The verifier also checks before naming a mismatch.
        step_offsets: how many offsets of each partition one step reads.
        step_s: for how long one step takes input records; one step takes at least one record.
        behind_s: a verifier further behind gives no verdict on the present. The time is enough for some of the longest steps
            and looks.
        leave_every_s: the interval between checkpoints. The next verifier reads the log of this time again.
        leave_share: the share of the time for checkpoints. The verifier looks at nothing meanwhile.
    """

    look_every_s: float = 0.5
    look_every_max_s: float = 3.0
    ask_every_s: float = 5.0
    step_offsets: int = 10_000
    step_s: float = 0.5
    behind_s: float = 15.0
    leave_every_s: float = 600.0
    leave_share: float = 0.01


PACE = Pace()
