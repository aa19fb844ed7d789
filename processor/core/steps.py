"""The steps of a task, in order. Tests and failpoints stop a task at a step."""

STEPS = (
    "after_open",
    "after_restore",
    "before_begin",
    "after_begin",
    "after_produce",
    "before_commit",
    "after_commit",
    "after_apply",
)

#: The steps of a replica and its publisher.
REPLICA_STEPS = (
    "after_restore",
    "before_append",
    "after_append",
    "after_apply",
    "before_begin",
    "after_begin",
    "after_produce",
    "before_commit",
    "after_commit",
    "before_delete",
    "after_delete",
)

#: Further steps of a task with states on disk.
DISK_STEPS = ("before_clear", "after_clear", "before_flush", "before_checkpoint", "after_checkpoint")
