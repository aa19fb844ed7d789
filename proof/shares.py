"""A verdict on all cores: the log in shares, each read and compared by a judge in a process of its own.

What a row is, what it was written by, and its inputs are in one share each; the rest is put together here, and judged as a judge
of everything does it. Only *valid* comes out of it. Where a share finds anything else, or has any trouble, or the log cannot be
divided after all, nothing is said: one judge reads everything again, and names what there is. So a verdict that is not *valid*
takes longer, and says the same.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple, cast

from onefold.exit_codes import FAILED
from onefold.proof.collecting import seldom
from onefold.proof.judge import CHECK_AGAIN_S, Judge, Progress, by_topic
from onefold.proof.parts import Part, checks, counted, together
from onefold.proof.placement import Share
from onefold.proof.tables import Comparison, Snapshot
from onefold.proof.verdict import CannotTell, Verdict, decide
from onefold.proof.workloads import workload

# A process that was asked to end is reading at most.
_END_S = 5.0


class _NotApart(Exception):
    """Outputs of one share have their inputs in another."""


class Settings(NamedTuple):
    """What each judge of a share needs; see `Judge`."""

    domain: str
    client: dict[str, Any]
    dsn: str


class Shares:
    """Judges of all shares of a log.

    Args:
        whole: a judge of everything, which reads nothing meanwhile.
        shares: how many there are.
    """

    def __init__(self, whole: Judge, settings: Settings, shares: int, progress: Progress) -> None:
        self._whole = whole
        self._work = workload(settings.domain)
        self._settings = settings
        self._progress = progress
        self._pipes: list[Connection] = []
        # Records, by share.
        self._read = [0] * shares
        #: It waited as long as it was to wait.
        self.late = False
        #: What a person should know of why it did not do, or "".
        self.trouble = ""

    def prove(self, verdict: Verdict, timeout_s: float) -> bool:
        """Whether the verdict is *valid*; then all of it is filled in.

        Args:
            timeout_s: how long to wait for the pipeline to drain, once all that is there has been read.
        """
        try:
            with self._processes():
                if self._is_valid(verdict, timeout_s):
                    return True
        except (_NotApart, CannotTell):
            pass  # one judge finds the same, and says it
        except Exception as error:  # noqa: BLE001 - whatever it is, one judge does without it
            self.trouble = f"one process had to verify, as several could not: {error}"
        verdict.checks, verdict.counts = [], {}
        return False

    @contextmanager
    def _processes(self) -> Iterator[None]:
        # A process that is a copy of this one would have its Kafka clients without their threads.
        start = multiprocessing.get_context("spawn")
        with ExitStack() as others:
            for number in range(len(self._read)):
                here, there = start.Pipe()
                given = (there, self._settings, Share(number, len(self._read)))
                process = start.Process(target=_judge, args=given, daemon=True)
                with _uninterrupted():
                    process.start()
                there.close()
                others.callback(_end, process, here)
                self._pipes.append(here)
            yield

    def _is_valid(self, verdict: Verdict, timeout_s: float) -> bool:
        deadline: float | None = None
        while not self.late:
            ends = self._whole.ends()
            holdup = str(next(filter(None, self._ask("read", ends)), ""))
            deadline = deadline or time.monotonic() + timeout_s
            self.late = time.monotonic() > deadline
            if not holdup:
                if self._is_right(verdict):
                    verdict.offsets, verdict.processes = by_topic(ends), len(self._pipes)
                    verdict.outcome, verdict.reason, verdict.code = decide([], "", True)
                    return True
                if self._whole.ends() == ends:
                    return False
            self._progress(holdup or "input is still arriving", sum(self._read))
            time.sleep(CHECK_AGAIN_S)
        return False

    def _is_right(self, verdict: Verdict) -> bool:
        """Whether all of it is as the input demands, at one moment of the database."""
        with Snapshot(self._settings.dsn) as snapshot:
            parts = [cast(Part, part) for part in self._ask("compare", snapshot.exported())]
            expected, outputs = together(self._work, parts)
            summed = tuple(table for table in self._work.tables if table.summed)
            names = {table.name for table in summed}
            views = tuple(view for view in self._work.views if view.table in names)
            sums = Comparison(replace(self._work, tables=summed, views=views), snapshot, expected, {})
            findings = list(sums.findings())
            compared = checks(self._work, parts, sums.checks)
            said = counted(part.counted for part in parts)
            shown = {view.name: snapshot.count(view.name) for view in self._work.views}
            findings += self._whole.conclude(verdict, snapshot, compared, expected, outputs, said)
        rows = {check.what: check.found for check in compared}
        return not findings and all(part.right for part in parts) and all(rows[view] == shown[view] for view in shown)

    def _ask(self, what: str, of: object) -> list[object]:
        """What each share answers. Raises what it raised there."""
        with suppress(ConnectionError):  # why it is gone, it has said
            for pipe in self._pipes:
                pipe.send((what, of))
        answers: dict[int, object] = {}
        while len(answers) < len(self._pipes):
            ready = wait([pipe for number, pipe in enumerate(self._pipes) if number not in answers])
            for number, pipe in enumerate(self._pipes):
                if pipe not in ready:
                    continue
                try:
                    is_answer, said = pipe.recv()
                except (EOFError, OSError):
                    raise RuntimeError("one of the processes was killed; is there enough memory?") from None
                if isinstance(said, BaseException):
                    raise said
                if is_answer:
                    answers[number] = said
                else:
                    doing, self._read[number] = said
                    self._progress(doing, sum(self._read))
        return [answers[number] for number in range(len(self._pipes))]


def _judge(pipe: Connection, settings: Settings, share: Share) -> None:
    """What a share's process does: it answers until nobody asks any more."""
    _end_with_parent()
    with suppress(EOFError, ConnectionError), seldom():
        try:
            _answer(pipe, settings, share)
        except (CannotTell, _NotApart) as reason:
            pipe.send((True, reason))
        except Exception as error:  # noqa: BLE001 - whatever it is, the verdict has to say it
            pipe.send((True, RuntimeError(f"{type(error).__name__}: {error}")))


def _end_with_parent() -> None:
    """From now on this process ends when the one that wants its answers does, however that happens. Between two of its own
    messages, by which it would notice, it may read for long.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "a share is judged in a process of its own"

    def until_it_ends() -> None:
        wait([parent.sentinel])
        os._exit(FAILED)

    threading.Thread(target=until_it_ends, name="parent", daemon=True).start()


def _answer(pipe: Connection, settings: Settings, share: Share) -> None:
    def progress(doing: str, records: int) -> None:
        if not judge.is_apart():
            raise _NotApart
        pipe.send((False, (doing, records)))

    judge = Judge(settings.domain, settings.client, settings.dsn, progress, share=share)
    with closing(judge):
        judge.check_beginnings()
        while True:
            what, of = pipe.recv()
            if what == "read":
                judge.read(of)
                pipe.send((True, judge.holdup(of)))
            else:
                with Snapshot(settings.dsn, of) as snapshot:
                    pipe.send((True, judge.part(snapshot)))


def _end(process: SpawnProcess, pipe: Connection) -> None:
    pipe.close()
    process.terminate()
    process.join(_END_S)
    process.kill()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """What is started in here takes no notice of Ctrl-C, which comes to all processes of a terminal: the first one ends the
    others. Outside of the main thread there is nothing to be done about it.
    """
    before = None
    with suppress(ValueError):
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
