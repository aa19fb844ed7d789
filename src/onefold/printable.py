"""Texts of anybody, for a terminal and a log. The verifier shows them too, and must not load the codec of the processor."""

from __future__ import annotations


def printable(text: str) -> str:
    """A text in which nothing moves the cursor, changes colours or turns the writing around: anybody's bytes are in it."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode() for char in text
    )


def sentence(text: str) -> str:
    """A reason as a sentence, with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
