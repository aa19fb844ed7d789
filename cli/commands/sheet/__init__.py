"""`onefold sheet`: a spreadsheet's cells as its log has them, and cells from a file into its log."""

HELP = """Print a sheet, as of now or of an earlier entry; import a file.

Example: onefold sheet open budget --range A1:F20
"""
VERBS = {
    "open": "Print a sheet.",
    "import": "Import a CSV file into a sheet, as one entry.",
}
