"""A display of repeated query results, updated in place until Ctrl-C."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, Queue

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from onefold.cli.console import console

EVERY_S = 1.0
# Time between updates of the displayed age while an answer is late.
_REDRAW_S = 1.0

Ask = Callable[[], Sequence[str]]


def watch(ask: Ask, title: str) -> None:
    """Call `ask` every EVERY_S seconds, and show the lines. Ends with KeyboardInterrupt.

    On a terminal the lines are updated in place. Without a terminal, and with NO_COLOR, changed lines are printed as a block,
    without escape sequences. A thread calls `ask`, because Ctrl-C does not interrupt a call of Kafka's client, which may take
    seconds. `watch` raises the exceptions of `ask`.
    """
    answers: Queue[Sequence[str] | BaseException] = Queue()
    threading.Thread(target=_run, args=(ask, answers), daemon=True).start()
    shown_on = console()
    if sys.stdout.isatty() and not shown_on.is_dumb_terminal and not os.environ.get("NO_COLOR"):
        _in_place(shown_on, answers, title)
    else:
        _in_blocks(answers)


def _run(ask: Ask, answers: Queue[Sequence[str] | BaseException]) -> None:
    try:
        while True:
            started = time.monotonic()
            answers.put(ask())
            time.sleep(max(0.0, started + EVERY_S - time.monotonic()))
    except BaseException as error:  # noqa: BLE001 - raised again in the main thread
        answers.put(error)


def _in_place(shown_on: Console, answers: Queue[Sequence[str] | BaseException], title: str) -> None:
    lines: Sequence[str] = ["asking"]
    answered, now = time.monotonic(), time.strftime("%H:%M:%S")
    with Live(console=shown_on, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            age_s = time.monotonic() - answered
            late = f", answered {age_s:.0f} s ago" if age_s > 2 * EVERY_S else ""
            live.update(_screen([f"{title}  {now}{late}  Ctrl-C ends", "", *lines]), refresh=True)
            try:
                lines = _said(answers.get(timeout=_REDRAW_S))
                answered, now = time.monotonic(), time.strftime("%H:%M:%S")
            except Empty:
                continue


def _screen(lines: Sequence[str]) -> Group:
    """Each line as a line of the screen, cut at the screen's width. A problem (a line with "!") is red."""
    return Group(
        *(Text(line, "bold red" if line.startswith("!") else "", no_wrap=True, overflow="ellipsis") for line in lines)
    )


def _in_blocks(answers: Queue[Sequence[str] | BaseException]) -> None:
    before: Sequence[str] | None = None
    while True:
        lines = _said(answers.get())
        if lines != before:
            sys.stdout.write("\n".join([*lines, "", ""]))
            sys.stdout.flush()
            before = lines


def _said(answer: Sequence[str] | BaseException) -> Sequence[str]:
    if isinstance(answer, BaseException):
        raise answer
    return answer
