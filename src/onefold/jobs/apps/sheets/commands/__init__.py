"""`onefold sheets`: print the cells of a sheet, import a file, and find uploads without a reference.

The entry point `sheets` of the group `onefold.commands` names this package.
"""

HELP = """Print a sheet, as of now or of an earlier entry; import a file; find uploads that no record references.

Example: onefold sheets open budget --range A1:F20
"""
VERBS = {
    "open": "Print a sheet.",
    "import": "Import a CSV file into a sheet, as one entry.",
    "sweep": "Delete uploads that no record references.",
}
#: The extras of Onefold that the command needs.
NEEDS = ("processor",)
