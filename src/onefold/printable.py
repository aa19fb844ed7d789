"""Foreign texts for a terminal and a log. The module is separate because the verifier must not load the processor's codec."""

from __future__ import annotations

import json


def printable(text: str, keep: str = "") -> str:
    """Escape each character that moves the cursor, changes colours or the writing direction. JSON stays valid JSON.

    Args:
        keep: The characters to leave unchanged.
    """
    # In JSON, all ASCII control characters except DEL are already escaped.
    return "".join(
        char if char.isprintable() or char in keep else json.dumps(char)[1:-1] if char > "~" else repr(char)[1:-1]
        for char in text
    )


def sentence(text: str) -> str:
    """A reason as a sentence, with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
