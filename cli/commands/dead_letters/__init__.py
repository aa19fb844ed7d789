"""`onefold dead-letters`: what was refused, why, and putting it back."""

HELP = """Look at the records that a pipeline set aside, and put them back when what was wrong is mended.

Example: onefold dead-letters list runner --since 2h
"""
VERBS = {
    "list": "Which there are, by reason, time, key or topic.",
    "show": "All that is known of one: bytes, origin, reason.",
    "replay": "Put them back into their inputs, each once.",
}
