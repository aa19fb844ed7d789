"""What both questions print."""

from __future__ import annotations

import json
from typing import Any

from onefold.operate.states import State
from onefold.operate.values import moment, printable


def heading(state: State) -> str:
    """Where and when a state was written."""
    if state.at is None:
        return state.note
    note = f" ({state.note})" if state.note else ""
    return f"{state.at}, {moment(state.at_ms)}{note}"


def shown(value: Any) -> str:
    """A value, in a line or in many."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    return "\n".join(printable(line) for line in text.splitlines())
