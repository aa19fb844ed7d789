"""Keeps the services of a plan running: starts them in order, starts them again when they end, stops them in reverse
order.

Run as `python -m onefold.stack.supervisor <home>` in a session of its own. It reads <home>/run/plan.json, writes
<home>/run/stack.json on every change, and ends on SIGTERM or SIGINT. It knows nothing about what the services do.
One thread only: a child's parent-death guard watches the thread that started it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from onefold.config import stack_state
from onefold.config.errors import first_line
from onefold.stack.child import Child, birth
from onefold.stack.plan import StackPlan
from onefold.stack.ports import ReservedPorts, of_stack
from onefold.stack.service import SupervisedService, is_ready

BACKOFF_FIRST_S = 0.2  # before the first restart; doubles
BACKOFF_MAX_S = 10.0
STABLE_S = 30.0  # a service that lived this long starts again with BACKOFF_FIRST_S
TURN_STARTING_S = 0.1  # between probes while something is starting
TURN_RUNNING_S = 1.0  # and while everything runs; the end of a child wakes the loop at once


class Managed:
    """One service's life: pending, starting, running, waiting, restarting, done or stopped."""

    def __init__(self, service: SupervisedService, clock: Callable[[], float] = time.monotonic) -> None:
        self.service = service
        self.child = Child(service)
        self.state = "stopped" if service.stopped else "pending"
        self.detail = f"`onefold start {service.name}` starts it" if service.stopped else ""
        self.restarts = 0
        self.was_ready = False
        self.exit_code: int | None = None
        self.last_end: dict[str, Any] | None = None
        self._clock = clock
        self._pause = BACKOFF_FIRST_S
        self._started_at = 0.0
        self._start_at = 0.0

    @property
    def busy(self) -> bool:
        """Whether something is about to change that somebody waits for."""
        return self.state in ("pending", "starting", "restarting")

    def turn(self) -> None:
        """Checks once and does what is due: start, notice readiness, notice the end. Never raises: whatever keeps this
        service from running is its own state, and no reason to end all the others.
        """
        try:
            self._turn()
        except Exception as error:  # noqa: BLE001  a supervisor outlives what it supervises
            self._on_trouble(error)

    def _turn(self) -> None:
        if self.state in ("done", "stopped"):
            return
        if self.state in ("pending", "restarting"):
            if self._clock() >= self._start_at:
                self._start()
            return
        ended = self.child.poll()
        if ended is not None:
            self._on_end(ended)
        else:
            self._probe()

    def describe(self) -> dict[str, Any]:
        """The service's entry of stack.json."""
        pid = self.child.pid if self.child.running() else None
        return {
            "pid": pid,
            "create_time": birth(pid) if pid else None,
            "state": self.state,
            "restarts": self.restarts,
            "detail": self.detail,
            "was_ready": self.was_ready,
            "exit_code": self.exit_code,
            "last_end": self.last_end,
            "log": str(self.service.log),
        }

    def _start(self) -> None:
        if self.service.ready.kind == "status_file":
            Path(self.service.ready.target).unlink(missing_ok=True)  # the last process's word is not this one's
        self.child.start()
        self._started_at = self._clock()
        self.state, self.detail = "starting", ""

    def _probe(self) -> None:
        if self.service.ready.kind == "done" or (self.state == "running" and self.service.ready.kind != "status_file"):
            return
        ready, detail = is_ready(self.service.ready)
        self.was_ready = self.was_ready or ready
        self.detail = detail
        self.state = "running" if ready else "waiting" if self.state in ("running", "waiting") else "starting"

    def _on_end(self, exit_code: int) -> None:
        self.exit_code = exit_code
        if self.service.ready.kind == "done" and exit_code == 0:
            self.state, self.detail, self.was_ready = "done", "", True
            return
        if self._clock() - self._started_at >= STABLE_S:
            self._pause = BACKOFF_FIRST_S
        how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
        self._start_again(how)

    def _on_trouble(self, error: Exception) -> None:
        """What could not be looked at runs on, and is looked at again; what could not be started is started again."""
        if self.state in ("pending", "restarting"):
            self._start_again(f"could not be started: {first_line(error)}")
        else:
            self.detail = f"cannot be looked at: {first_line(error)}"

    def _start_again(self, why: str) -> None:
        pause = self._pause
        self._pause = min(BACKOFF_MAX_S, 2 * pause)  # doubled step by step: a power of the failures overflows one day
        self.restarts += 1
        self.last_end = {"why": why, "at": time.time(), **self._logged()}
        self._start_at = self._clock() + pause
        self.state, self.detail = "restarting", f"{why}; starts again after {pause:.1f} s"

    def _logged(self) -> dict[str, int]:
        """How many bytes the newest file of its log has, and that file's inode: around there stands what it said at its end."""
        try:
            found = self.service.log.stat()
        except OSError:
            return {"log_at": 0, "log_file": 0}
        return {"log_at": found.st_size, "log_file": found.st_ino}


class Supervisor:
    """Runs the stages of a plan; each stage starts when all services of the one before are ready or stopped by the user."""

    def __init__(
        self, stages: Sequence[Sequence[SupervisedService]], publish: Callable[[dict[str, Any]], None]
    ) -> None:
        self.stages = [[Managed(service) for service in stage] for stage in stages]
        self._publish = publish
        self._published: dict[str, Any] | None = None
        self._complaint = ""

    def adopt(self, stages: Sequence[Sequence[SupervisedService]]) -> None:
        """Goes over to another plan: a service that is in both as it is goes on untouched, one that is gone or changed is
        stopped, the last stage first, and what is new or changed is started in its turn.
        """
        before = {managed.service.name: managed for stage in self.stages for managed in stage}
        kept = {
            service.name: before.pop(service.name)
            for stage in stages
            for service in stage
            if service.name in before and before[service.name].service == service
        }
        for stage in reversed(self.stages):
            _stop([managed for managed in stage if managed.service.name in before])
        self.stages = [[kept.get(service.name) or Managed(service) for service in stage] for stage in stages]
        self._published = None

    def turn(self) -> float:
        """Checks every service of the stages that are due once. Returns the seconds until the next check is due."""
        busy = False
        for stage in self.stages:
            for managed in stage:
                managed.turn()
                busy = busy or managed.busy
            if not all(managed.was_ready or managed.service.stopped for managed in stage):
                busy = True
                break
        self.publish()
        return TURN_STARTING_S if busy else TURN_RUNNING_S

    def publish(self) -> None:
        """Writes the state if it changed. What cannot be written now, as on a full disk, is tried again at the next
        turn.
        """
        services = {managed.service.name: managed.describe() for stage in self.stages for managed in stage}
        if services == self._published:
            return
        try:
            self._publish(services)
        except OSError as error:
            self._complain(f"the state cannot be written: {first_line(error)}")
            return
        self._published, self._complaint = services, ""

    def _complain(self, complaint: str) -> None:
        """Once, into the supervisor's own log, which may be on the same full disk."""
        if complaint != self._complaint:
            self._complaint = complaint
            with suppress(OSError):
                sys.stderr.write(f"{complaint}\n")
                sys.stderr.flush()

    def stop(self) -> None:
        """Stops every stage, the last one first: all services of a stage at once, each with its own patience."""
        for stage in reversed(self.stages):
            _stop(stage)
            self.publish()


def _stop(services: Sequence[Managed]) -> None:
    for managed in services:
        with suppress(OSError):  # one that may not be signalled must not keep the others from being stopped
            managed.child.ask_to_stop()
    for managed in services:
        with suppress(OSError):
            managed.child.stop()
        if (ended := managed.child.poll()) is not None:
            managed.exit_code = ended
        managed.state, managed.detail = "stopped", ""


def serve(home: Path) -> None:
    """Runs the plan of `home` until asked to stop; then removes the state file. SIGHUP has it read the plan again."""
    plan = StackPlan.read(home)
    identity = {"supervisor_pid": os.getpid(), "create_time": birth(os.getpid())}
    head = {"version": stack_state.VERSION, **identity, **plan.public}
    supervisor = Supervisor(
        plan.stages, lambda services: stack_state.write(stack_state.path(home), {**head, "services": services})
    )

    def read_again() -> None:
        found = StackPlan.read(home)
        keeping.keep(of_stack(home, found.public))
        head.update(found.public)
        supervisor.adopt(found.stages)

    try:
        with closing(ReservedPorts()) as keeping:
            keeping.keep(of_stack(home, plan.public))
            run(supervisor, read_again=read_again)
    finally:
        with suppress(OSError):  # then it names a supervisor that is gone, which readers notice
            stack_state.path(home).unlink(missing_ok=True)


def run(
    supervisor: Supervisor,
    after_each_turn: Callable[[], None] = lambda: None,
    read_again: Callable[[], None] | None = None,
) -> None:
    """Keeps the supervisor's services running until SIGTERM or SIGINT, then stops them. Call it in the main thread.

    Args:
        read_again: called between two turns after a SIGHUP. None: that is one more signal to stop, as from a terminal that
            is closed.
    """
    stopping: list[int] = []
    asked: list[int] = []
    waker, wake = socket.socketpair()
    for end in (waker, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: stopping.append(number))
    if read_again is not None:
        signal.signal(signal.SIGHUP, lambda number, frame: asked.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only to wake the loop
    try:
        while not stopping:
            if asked and read_again is not None:
                asked.clear()
                read_again()
            seconds = supervisor.turn()
            after_each_turn()
            select.select([waker], [], [], seconds)
            with suppress(BlockingIOError):
                waker.recv(4096)
    finally:
        supervisor.stop()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
