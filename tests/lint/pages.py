"""The language of pages that people write: sentences, paragraphs, table cells, words. Each rule yields its complaints."""

import re
from collections.abc import Iterator

from tests.lint.source import Source, place

SENTENCE_WORDS, PARAGRAPH_WORDS, CELL_CHARACTERS = 32, 90, 160
PRO_FORMS = 6.0  # for each 100 words of all pages
PRO_FORMS_OF_A_PAGE = 7.9
# Below this many words a share says little.
FEW_WORDS = 150
# Made from code or from the marks of tests, or notes of releases that are over.
_MADE = ("docs/api.md", "docs/commands.md", "docs/errors.md", "docs/promises.md", "CHANGELOG.md")
_MADE_TABLE = re.compile(r"<!-- table: .*?<!-- end -->", re.DOTALL)
_FENCED = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+|\s*\|\s*")
_PRO_FORM = re.compile(
    r"\b(it|its|itself|that|this|these|those|what|whatever|who|whom|whose|whoever|which|one|ones|they|them|their|theirs|such|"
    r"other|others|another|some|something|somebody|someone|anything|anybody|nobody|nothing|everybody|everything|he|him|his|so)\b",
    re.IGNORECASE,
)
_NO_NOUN = re.compile(
    r"(?:And |But |So |Or )?(?:Who|Whoever|What|Whatever|Whichever|That which|Those (?:who|that)|One (?:who|that)|Somebody|"
    r"Nobody|Everybody|Of (?:one|a|an|what|those|these|such))\b"
)
# Words of the project alone, and the words of the field for them (docs of Kafka, Spark, PostgreSQL).
BANNED = {
    r"anew|afresh": "again",
    r"by turns": "in interleaved runs",
    r"of before|of late": "name the time or the version",
    r"likewise": "also",
    r"at hand": "name the object",
    r"gets? on": "makes progress",
    r"comes? true|came true": "is accepted",
    r"stands? still|stood still": "is stalled, does not advance",
    r"held back": "blocked",
    r"newcomers?": "joining replica",
    r"neighbou?rs?": "peer",
    r"courtes(?:y|ies)": "backoff",
    r"patience": "timeout",
    r"gives? way|giving way": "backs off",
    r"set aside": "rejected",
    r"put back": "replayed",
    r"land(?:s|ed|ing)": "write, commit",
    r"fold(?:s|ed)": "process",
}
_BANNED = {re.compile(rf"\b(?:{word})\b", re.IGNORECASE): advice for word, advice in BANNED.items()}


def _written(source: Source) -> Iterator[tuple[str, str]]:
    """Pages without fenced code and without tables that a program makes."""
    for path, text in source.pages.items():
        name = place(path)
        if name not in _MADE:
            yield name, _MADE_TABLE.sub("", _FENCED.sub("", text))


def _prose(line: str) -> str:
    """A line of Markdown as a reader says it: code and the targets of links are one word, emphasis is none."""
    line = re.sub(r"`[^`]*`", "X", re.sub(r"\]\([^)]*\)", "]", line))
    return re.sub(r"[\[\]*]|^\s*(?:[-#>]+|\d+\.)\s", "", line).strip()


def _words(text: str) -> int:
    return len(re.findall(r"[A-Za-z']+", text))


def sentences(source: Source) -> Iterator[str]:
    """No sentence has more than 32 words, and none begins without a noun."""
    for name, text in _written(source):
        for line in text.splitlines():
            for sentence in _SENTENCE_ENDS.split(_prose(line)):
                if (count := _words(sentence)) > SENTENCE_WORDS:
                    yield f"{name}: {count} words in one sentence: {sentence[:60]}"
                if _NO_NOUN.match(sentence) and "?" not in sentence and count >= 3:
                    yield f"{name}: begin with a noun: {sentence[:60]}"


def paragraphs(source: Source) -> Iterator[str]:
    """No line of text has more than 90 words, and no cell of a table more than 160 characters."""
    for name, text in _written(source):
        for line in text.splitlines():
            if line.startswith("|"):
                yield from (
                    f"{name}: {len(cell.strip())} characters in one cell: {cell.strip()[:60]}"
                    for cell in re.split(r"(?<!\\)\|", line)
                    if len(cell.strip()) > CELL_CHARACTERS
                )
            elif (count := _words(_prose(line))) > PARAGRAPH_WORDS:
                yield f"{name}: {count} words in one paragraph: {_prose(line)[:60]}"


def private_words(source: Source) -> Iterator[str]:
    """Readers know the words of Kafka, Spark and PostgreSQL."""
    for name, text in _written(source):
        for line in map(_prose, text.splitlines()):
            yield from (
                f"{name}: {found[0]}: write {advice}"
                for word, advice in _BANNED.items()
                if (found := word.search(line))
            )


def pro_forms(source: Source) -> Iterator[str]:
    """A reader resolves each `it`, `that` and `one`. Names of things need no resolving."""
    words = found = 0
    for name, text in _written(source):
        prose = "\n".join(map(_prose, text.splitlines()))
        here, of_page = len(_PRO_FORM.findall(prose)), _words(prose)
        words, found = words + of_page, found + here
        if of_page >= FEW_WORDS and 100 * here / of_page > PRO_FORMS_OF_A_PAGE:
            yield f"{name}: {100 * here / of_page:.1f} pro-forms in 100 words, more than {PRO_FORMS_OF_A_PAGE:g}"
    if 100 * found / words > PRO_FORMS:
        yield f"all pages: {100 * found / words:.1f} pro-forms in 100 words, more than {PRO_FORMS:g}"


RULES = (sentences, paragraphs, private_words, pro_forms)
