"""Which tables a merge may add up, by its text. A model says so in `Table.adds`; this is for one that does not."""

import re

from onefold import pipelines
from onefold.verify.expect import Workload

# Comments and texts, in which nothing is added; and names in quotes, which are kept.
_SKIPPED = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|(\"(?:[^\"]|\"\")*\")", re.DOTALL)
# Texts with rules of their own: where they end is not looked for, and such a merge may add.
_ODD = re.compile(r"\be'|\$\w*\$")
# A sign between two operands, which is no arrow of JSON; or an aggregate that adds.
_ADDS = r"(?:[\w)\]\"']\s*(?:\+|-(?!>))|\b(?:sum|count)\s*\()"
# A row that is there is added to where it is changed, or where it is read.
_SET = re.compile(rf"\bset\b[^;]*?{_ADDS}")
_READ = r"(?:\b(?:from|join|table|using)\s+(?:only\s+)?|,\s*){}\b"


def may_add(work: Workload) -> list[str]:
    """The tables of output topics that have no `adds`, and a merge that may add to a row, or none that is known."""
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
    """The text without comments, and with empty texts; as it is if some of its texts have rules of their own."""
    if _ODD.search(text):
        return text
    return _SKIPPED.sub(lambda found: found[1] or ("''" if found[0].startswith("'") else " "), text)
