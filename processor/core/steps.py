"""The steps of a task, in the order in which it takes them: where tests and failpoints stop it."""

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

#: Those of a replica, and of the publisher beside it.
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

#: Further ones of a task whose states are on disk.
DISK_STEPS = ("before_clear", "after_clear", "before_flush", "before_checkpoint", "after_checkpoint")
