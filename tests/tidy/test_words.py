"""Words that were ours alone, and are the field's now. None of them comes back."""

import functools
import re
from collections.abc import Iterator

import pytest

from tests.support.rooms import ROOMS, ROOT

# Where they may stand: what is told of the past, this list, and what others wrote.
EXEMPT = (
    "CHANGELOG.md",
    "docs/decisions/",
    "tests/tidy/test_words.py",
    "tests/vendor/",
    "tests/data/",
    "dashboard/static/vendor/",
    "requirements.lock",
)
FOLDERS = (*ROOMS, "avro", "docs", "images", "sql", "src/onefold", "tests")
TEXT = {".py", ".md", ".sql", ".toml", ".yml", ".avsc", ".html", ".js", ".css", ".svg", ".txt", ""}

# A pattern of what is retired, and what it is called now. A word of everyday English is looked for only in the shape in
# which it was a name of ours: `_` and a change of case are borders of words, as in `long_way` or `LaneFailed`.
WORD = r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))"  # begins here
END = r"(?![a-z])"  # and ends here
RETIRED = {
    rf"{WORD}[Tt]urnstiles?{END}": "compute lock",
    rf"{WORD}[Cc]aution{END}": "crash quarantine",
    r"\b(?:becomes?|is|are|was|a|not) calm\b|\.calm\b|\bcalm *=(?!=)": "clean, of a crash quarantine",
    r"\btr(?:y|ies|ied|ying)[ _]alone": "alone in crash quarantine",
    r"\baway from home\b|\b[Hh]ome partitions?\b|\bat home\b|\bdef home\(key\b|\bplacement import home\b": "key partition",
    r"\b(?:records?|cop(?:y|ies)) away\b|\baway (?:record|cop)": "misrouted",
    r"\bforwarding\b|\b(?:is|are|was|were|be|never) forwarded\b|\bforwarded (?:record|cop)": "repartition",
    rf"{WORD}[Ss]uspic\w+|{WORD}[Ss]uspects?{END}": "ambiguous request",
    rf"{WORD}[Rr]enew(?:s|ed|ing|al)?{END}": "re-initialise the producer",
    rf"{WORD}[Ll]anes?{END}": "query",
    r"spark_sink[./]watch\b|\bWatch\b|\b[Tt]end(?:ed|ing)\b|\btend\(": "query supervisor",
    rf"{WORD}[Tt]wins?{END}": "concurrent sink",
    r"(?<![a-z])(?:short|long)[ _]way(?:s\b|\b|_)|(?:Short|Long)Way": "driver staging, executor staging",
    r"\b_?floors\b|_floors\b|\bfloor\.(?:topic|partition|since)": "start offsets",
    r"\bSpans?\b|\b_?spans\b(?! (?:an?|the|more|two)\b)|\bspan\.(?:key|start|end|last)\b": "offset ranges",
    r"\.lasts\b|_lasts\b|\blasts(?= *[=:\[]|\.\w)": "last records",
    r"\bsettle=|\b(?:topology|TOPOLOGY|app)\.settle\b|\bSettle\b|\bdef settle\((?!self)": "emit_change",
    rf"{WORD}[Ll]eash(?:es|ed)?{END}": "parent-death guard",
    r"\bbench[./]stand\b|\bimport stand\b|\bStand\b(?!-)|\bstand\.\w": "benchmark environment",
    rf"{WORD}[Cc]ubes?{END}": "rollup",
    rf"{WORD}[Pp]ictures?{END}": "snapshot, view model; of a page, screenshot",
    rf"{WORD}[Ss]cenes?{END}": "view model",
    r"\bwatcher import .*\bFrame\b|\bframe\.picture\b|event=\"frame\"|\(\"frame\"": "update",
    r"\b[Cc]an[ _]not\b|_can_not_": "cannot",
    # pip asks an index for a bare name, and on the public one it is nobody's yet.
    r"pip3? install\b[^\n`]*[ '\"]onefold(?=[\['\"` \n])|pip3? install onefold\b": "the file of the wheel",
}


@functools.cache
def texts() -> dict[str, str]:
    """Every text of the tree that somebody of ours wrote, by the name of its file."""
    found = [path for path in ROOT.iterdir() if path.is_file() and path.name != "LICENSE"]
    found += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    names = {str(path.relative_to(ROOT)): path for path in sorted(found)}
    return {
        name: path.read_text(encoding="utf-8")
        for name, path in names.items()
        if path.suffix in TEXT and "__pycache__" not in name and not name.startswith((".", *EXEMPT))
    }


def uses(pattern: str) -> Iterator[str]:
    """Where it stands, or is the name of a file."""
    compiled = re.compile(pattern)
    for name, text in texts().items():
        if compiled.search(name):
            yield name
        if compiled.search(text):
            lines = enumerate(text.splitlines(), 1)
            yield from (f"{name}:{at}: {line.strip()}" for at, line in lines if compiled.search(line))


@pytest.mark.parametrize("pattern", RETIRED, ids=lambda pattern: RETIRED[pattern])
def test_no_retired_word_is_used(pattern: str) -> None:
    """In no name, comment, message, document or test."""
    found = list(uses(pattern))

    assert not found, f"say {RETIRED[pattern]}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "turnstile",
        "a careful Caution",
        "it becomes calm",
        "tried alone",
        "away from home",
        "records away",
        "is forwarded",
        "suspicion",
        "renew_producer",
        "LaneFailed",
        "self.lanes",
        "onefold.spark_sink.watch",
        "tended.tend()",
        "a twin",
        "the long way",
        "by_short_way(",
        "floors = {}",
        "floor.since",
        "plan.spans[0]",
        "lasts: dict",
        "settle=moved",
        "app.settle(1)",
        "Leash()",
        "with Stand() as it",
        "cubes.py",
        "the picture",
        "scene",
        "Span(1)",
        'event="frame"',
        "can not",
        "test_it_can_not_be",
    ],
)
def test_they_would_be_found(text: str) -> None:
    """As they stood there."""
    assert any(re.search(pattern, text) for pattern in RETIRED)


@pytest.mark.parametrize(
    "text",
    [
        "precaution",
        "ONEFOLD_HOME",
        "the home is .onefold",
        "throw away",
        "go forward",
        "plane",
        "explained",
        "watchdog",
        "it tends to",
        "an enormous span",
        "tendency",
        "attend",
        "math.floor(x)",
        "<span class=x>",
        "</span>",
        "as long as it lasts,",
        "settled_once",
        "model.settle()",
        "calm: ink on paper",
        "Stand-ins",
        "an update spans an hour",
        "a trading floor",
        "a server that is away",
        "def home(tmp_path)",
        "it has to stand",
        "standard",
        "obscene",
        "DataFrame",
        "frames",
        "X-Forwarded-For",
        "cannot",
        "a long wait",
    ],
)
def test_english_is_left_alone(text: str) -> None:
    """What could not be confused."""
    assert [pattern for pattern in RETIRED if re.search(pattern, text)] == []


def test_every_file_is_looked_at() -> None:
    """Nothing found could also mean that nobody looked."""
    assert len(texts()) > 400
    assert {"README.md", "docker-compose.yml", "processor/core/fold.py", "tests/tidy/test_docs.py"} <= texts().keys()
