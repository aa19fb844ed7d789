"""Which tables a merge may add up, by its text. A model says so in `Table.adds`; this is for one that does not."""

import re

from onefold import pipelines
from onefold.proof.expect import Workload

# Comments and texts, in which nothing is added.
_SKIPPED = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", re.DOTALL)
_ADDS = r"[+-]|\bsum\s*\("
# A row that is there is added to where it is changed, or where it is read.
_SET = re.compile(rf"\bset\b(?:(?!\bwhere\b|\breturning\b|;).)*?(?:{_ADDS})", re.DOTALL)
_READ = r"\b(?:from|join|table)\s+(?:only\s+)?{}\b"


def may_add(work: Workload) -> list[str]:
    """The tables of output topics that have no `adds`, and a merge that may add to a row, or none that is known."""
    pipeline = pipelines.find().pipelines.get(work.name)
    files = [*(pipeline.sql / "merge").glob("*.sql")] if pipeline else []
    texts = {
        file.stem: _SKIPPED.sub(" ", file.read_text("utf-8", "replace")).lower().replace('"', "") for file in files
    }
    found = []
    for topic, table in work.outputs.items():
        name = re.escape(table.name.lower())
        merges = [
            text
            for merge, text in texts.items()
            if (merge == topic or merge.startswith(f"{topic}.")) and re.search(rf"\b{name}\b", text)
        ]
        adding = [
            text
            for text in merges
            if _SET.search(text) or (re.search(_READ.format(name), text) and re.search(_ADDS, text))
        ]
        if not table.adds and (adding or not merges):
            found.append(table.name)
    return sorted(found)
