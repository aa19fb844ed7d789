"""The one error that a user is meant to see: a sentence that says what is wrong, and a hint that says what to do."""

from __future__ import annotations

import json

from onefold.exit_codes import FAILED


def first_line(error: BaseException) -> str:
    """The first line of an error, for a state or a log line; its name where it is empty. Never a stack trace."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


class UserError(Exception):
    """Something that the user can put right.

    Attributes:
        message: one sentence, what is wrong.
        hint: what to do about it, may be empty.
        exit_code: the process's exit code, of `onefold.exit_codes`.
    """

    def __init__(self, message: str, hint: str = "", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def as_text(self) -> str:
        """The error as two lines for a terminal."""
        return f"error: {self.message}" + (f"\n  {self.hint}" if self.hint else "")

    def as_json(self) -> str:
        """The error as one JSON object for a program."""
        return json.dumps({"error": self.message, "hint": self.hint, "exit_code": self.exit_code}, ensure_ascii=False)
