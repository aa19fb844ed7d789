"""How often the continuous verifier looks, asks and saves a checkpoint, and how much it takes in one step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """Intervals and step sizes of a continuous verifier.

    Attributes:
        look_every_s: between two looks at the tables. A finding is to be named within five seconds; reading and a look must both
            fit in, twice.
        look_every_max_s: the longest interval between looks, also where looks are expensive.
        ask_every_s: between two questions whether the topics are still the same. Before each finding the verifier asks as well.
        step_offsets: how many offsets of each partition one step reads.
        step_s: for how long one step takes input records; one step takes at least one record.
        behind_s: a verifier that is further behind gives no verdict on the present. Some steps and looks of the longest kind fit
            in.
        leave_every_s: between two checkpoints. The next verifier reads the rest of the log for this long.
        leave_share: of the time, how much checkpoints may take. The verifier looks at nothing meanwhile.
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
