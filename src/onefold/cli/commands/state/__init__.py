"""`onefold state`: the states of keys, from the changelog."""

HELP = """Show the state of a key, as the handler left it.

Example: onefold state get campaigns 1
"""
VERBS = {"get": "The state of a key, now or as of an offset."}
