"""The steps of a batch's transaction, in order. Tests and failpoints stop the sink at these steps."""

STEPS = (
    "sink.before_cas",
    "sink.after_cas",
    "sink.before_copy",
    "sink.after_copy",
    "sink.before_merge",
    "sink.after_merge",
    "sink.before_commit",
    "sink.after_commit",
)
