"""`onefold trades`: the command of the pipeline `trades`.

The entry point `trades` of the group `onefold.commands` names this package.
"""

HELP = """Evaluate the pipeline of trades as its seed does.

Example: onefold trades evaluate --messages 1000000 --no-failures
"""
VERBS = {"evaluate": "The evaluation of the trade risk seed, with an HTML report."}
#: The extras of Onefold that the command needs.
NEEDS = ("stack",)
