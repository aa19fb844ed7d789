"""`onefold dead-letters`: what was refused, why, and putting it back."""

HELP = """Show rejected records, and replay them after the fix.

Example: onefold dead-letters list runner --since 2h
"""
VERBS = {
    "list": "List them, by reason, time, key or topic.",
    "show": "Show one: bytes, origin, reason.",
    "replay": "Write them to their inputs again, each once.",
}
