"""`onefold jobs`: the jobs of a pipeline."""

HELP = """Requeue jobs whose results are missing.

Example: onefold jobs requeue orders --since 2026-11-23 --dry-run
"""
VERBS = {"requeue": "Requeue jobs whose results are missing."}
