"""Generate docs/commands.md: every command with help and example. `python -m tests.support.commands` writes the page."""

from tests.support.rooms import ROOT
from tests.support.verbs import COMMANDS, example, loaded

PAGE = ROOT / "docs" / "commands.md"
_HEAD = """# Commands

Every command has `--help` with all options. `./onefold` in a checkout and `onefold` of a wheel are the same.
Exit codes: [settings](settings.md#exit-codes). This page is made from the help, by `python -m tests.support.commands`.

| command | effect | example |
|---|---|---|
"""


def page() -> str:
    """The expected page."""
    return _HEAD + "".join(
        f"| `onefold {' '.join(words)}` | {_cell(_effect(words))} | `{_cell(example(words))}` |\n" for words in COMMANDS
    )


def _effect(words: tuple[str, ...]) -> str:
    """First sentence of the help."""
    text = " ".join(str(loaded(words).help).partition("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
