"""`onefold dead-letters`: list, show, replay and drop rejected records."""

HELP = """Show rejected records, and replay them after the fix, or drop them.

Example: onefold dead-letters list runner --since 2h
"""
VERBS = {
    "list": "List them, by reason, time, key or topic.",
    "show": "Show one: bytes, origin, reason.",
    "replay": "Write them to their inputs again, each once.",
    "drop": "Decide that they never count.",
}
