"""`onefold trades`: what the pipeline of trades brings beside its handler.

The entry point `trades` of the group `onefold.commands` names this package.
"""

HELP = """Evaluate the pipeline of trades as its seed does.

Example: onefold trades evaluate --messages 1000000 --no-failures
"""
VERBS = {"evaluate": "The evaluation of the trade risk seed, with an HTML report."}
#: Extras of Onefold.
NEEDS = ("stack",)
