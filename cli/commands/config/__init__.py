"""`onefold config`: the settings. One module a question."""

HELP = """Show the settings in force.

Example: onefold config show
"""
VERBS = {"show": "Each setting, its value, and where it comes from."}
