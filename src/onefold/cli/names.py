"""Aliases of verbs, and former names of verbs and options, which work in the current release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Words = tuple[str, ...]


class Present(NamedTuple):
    """The present name for a former name.

    Attributes:
        words: group and verb.
        options: the verb's renamed options, by the former names.
        implied: an argument that the present name includes.
    """

    words: Words
    options: Mapping[str, str] = {}
    implied: str = ""


#: For users of `docker compose`.
ALIASES: Mapping[str, str] = {"ps": "status"}
#: Names of earlier releases. In an entry with equal words, only options have new names.
FORMER: Mapping[Words, Present] = {
    ("replay",): Present(("rebuild",), {"--from": "--since"}),
    ("redrive",): Present(("jobs", "requeue")),
    ("prepare",): Present(("migrate",)),
    ("sheet",): Present(("sheets",)),
    ("sweep",): Present(("sheets", "sweep"), implied="sheets"),
    ("config", "show"): Present(("config",)),
    ("bench", "trades"): Present(("trades", "evaluate")),
    ("chaos",): Present(("chaos",), {"--workload": "--pipeline"}),
}


def present(arguments: Sequence[str]) -> tuple[list[str], str]:
    """The command line with present names, and a sentence with the new name of a former name, or ""."""
    given = [*arguments]
    if given and given[0] in ALIASES:
        return [ALIASES[given[0]], *given[1:]], ""
    for words, now in FORMER.items():
        if tuple(given[: len(words)]) == words:
            rest = given[len(words) :]
            old = dict.fromkeys(option for word in rest if (option := word.partition("=")[0]) in now.options)
            if words == now.words and not old:
                return given, ""
            if now.implied and now.implied in rest:
                rest.remove(now.implied)
            renamed = [_renamed(word, now.options) for word in rest]
            new = [now.options[option] for option in old]
            was, is_now = " ".join([*words, *old]), " ".join([*now.words, *new])
            sentence = f"`onefold {was}` is `onefold {is_now}` now; the next release does not have the old name"
            return [*now.words, *renamed], sentence
    return given, ""


def _renamed(word: str, options: Mapping[str, str]) -> str:
    name, equals, value = word.partition("=")
    return f"{options.get(name, name)}{equals}{value}"
