"""Find in the text of merges the tables with sums of output records. A model names the columns in `Table.adds`; without `adds`,
the text of the merge decides.
"""

import re

from onefold import pipelines
from onefold.verify.expect import Workload

# Comments and string literals, without additions; and quoted identifiers, which stay in the text.
_SKIPPED = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|(\"(?:[^\"]|\"\")*\")", re.DOTALL)
# Literals with escape rules of their own. The search does not parse these literals, and such a merge counts as adding.
_ODD = re.compile(r"\be'|\$\w*\$")
# A sign between two operands, but no JSON arrow; or an aggregate that adds.
_ADDS = r"(?:[\w)\]\"']\s*(?:\+|-(?!>))|\b(?:sum|count)\s*\()"
# A statement adds to an existing row in a SET clause, or by reading the table.
_SET = re.compile(rf"\bset\b[^;]*?{_ADDS}")
_READ = r"(?:\b(?:from|join|table|using)\s+(?:only\s+)?|,\s*){}\b"


def may_add(work: Workload) -> list[str]:
    """Return the tables of output topics without `adds`, if a merge may add to a row, or no merge is known."""
    pipeline = pipelines.find().pipelines.get(work.name)
    files = [*(pipeline.sql / "merge").glob("*.sql")] if pipeline else []
    texts = {file.stem: file.read_text("utf-8", "replace").lower() for file in files}
    found = []
    for topic, table in work.outputs.items():
        name = re.escape(table.name.lower())
        of_topic = [_code(text) for merge, text in texts.items() if merge == topic or merge.startswith(f"{topic}.")]
        merges = [text for text in of_topic if re.search(rf"\b{name}\b", text.replace('"', ""))]
        if not table.adds and (not merges or any(_may_add(text, name) for text in merges)):
            found.append(table.name)
    return sorted(found)


def _may_add(text: str, name: str) -> bool:
    reads = re.search(_READ.format(name), text.replace('"', "")) and re.search(_ADDS, text)
    return bool(_ODD.search(text) or _SET.search(text) or reads)


def _code(text: str) -> str:
    """Return the text without comments and with empty string literals; unchanged if a literal has escape rules of its own."""
    if _ODD.search(text):
        return text
    return _SKIPPED.sub(lambda found: found[1] or ("''" if found[0].startswith("'") else " "), text)
