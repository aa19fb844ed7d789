"""The steps of a landing, in the order in which it takes them: where tests and failpoints stop it."""

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
