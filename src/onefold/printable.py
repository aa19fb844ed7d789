"""Texts of anybody, for a terminal and a log. The verifier shows them too, and must not load the codec of the processor."""

from __future__ import annotations

import json


def printable(text: str, keep: str = "") -> str:
    """A text in which no character moves the cursor, changes colours or turns the writing around. JSON stays JSON.

    Args:
        keep: characters that stay as they are.
    """
    # JSON has escaped its ASCII characters, except DEL.
    return "".join(
        char if char.isprintable() or char in keep else json.dumps(char)[1:-1] if char > "~" else repr(char)[1:-1]
        for char in text
    )


def sentence(text: str) -> str:
    """A reason as a sentence, with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
