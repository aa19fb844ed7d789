"""The supervisor: starts the services of a plan in order, restarts exited services, stops all services in reverse order.

Run as `python -m onefold.stack.supervisor <home>` in a separate session. The supervisor reads <home>/run/plan.json, writes
<home>/run/stack.json on every change, and ends on SIGTERM or SIGINT. The supervisor has a single thread, because the
parent-death guard of a child watches the thread that started the child.
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
STABLE_S = 30.0  # after an uptime of STABLE_S, the backoff begins again with BACKOFF_FIRST_S
TURN_STARTING_S = 0.1  # between turns while a service is starting
TURN_RUNNING_S = 1.0  # between turns while all services run; the exit of a child interrupts the wait


class Managed:
    """A supervised service with the state: pending, starting, running, waiting, restarting, done or stopped."""

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
        """Whether the state is expected to change soon."""
        return self.state in ("pending", "starting", "restarting")

    def turn(self) -> None:
        """Start the service if due, check readiness, detect an exit. Never raises: an error of one service becomes the
        service's state, and must not stop all services.
        """
        try:
            self._turn()
        except Exception as error:  # noqa: BLE001  an error of one service must not end the supervisor
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
            Path(self.service.ready.target).unlink(missing_ok=True)  # the status of the last process is stale
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
        """Restart a service that could not be started. If the check of a running service failed, the next turn checks again."""
        if self.state in ("pending", "restarting"):
            self._start_again(f"could not be started: {first_line(error)}")
        else:
            self.detail = f"cannot be looked at: {first_line(error)}"

    def _start_again(self, why: str) -> None:
        pause = self._pause
        self._pause = min(BACKOFF_MAX_S, 2 * pause)  # doubled step by step, because 2 ** restarts would overflow
        self.restarts += 1
        self.last_end = {"why": why, "at": time.time(), **self._logged()}
        self._start_at = self._clock() + pause
        self.state, self.detail = "restarting", f"{why}; starts again after {pause:.1f} s"

    def _logged(self) -> dict[str, int]:
        """Size and inode of the newest log file: the position of the last output of the exited process."""
        try:
            found = self.service.log.stat()
        except OSError:
            return {"log_at": 0, "log_file": 0}
        return {"log_at": found.st_size, "log_file": found.st_ino}


class Supervisor:
    """Runs the stages of a plan; a stage starts when all services of the stage before were ready, or were stopped."""

    def __init__(
        self, stages: Sequence[Sequence[SupervisedService]], publish: Callable[[dict[str, Any]], None]
    ) -> None:
        self.stages = [[Managed(service) for service in stage] for stage in stages]
        self._publish = publish
        self._published: dict[str, Any] | None = None
        self._complaint = ""

    def adopt(self, stages: Sequence[Sequence[SupervisedService]]) -> None:
        """Change to another plan. An unchanged service runs on. A removed or changed service is stopped, the last stage first.
        A new or changed service starts with the stage.
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
        """Check each service of the started stages once. Returns the seconds until the next turn."""
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
        """Write a changed state. After a failed write, as on a full disk, the next turn writes again."""
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
        """Write a complaint once to the supervisor's log, which may be on the same full disk."""
        if complaint != self._complaint:
            self._complaint = complaint
            with suppress(OSError):
                sys.stderr.write(f"{complaint}\n")
                sys.stderr.flush()

    def stop(self) -> None:
        """Stop the stages, the last stage first. Services of a stage stop at the same time, each with a separate time-out."""
        for stage in reversed(self.stages):
            _stop(stage)
            self.publish()


def _stop(services: Sequence[Managed]) -> None:
    for managed in services:
        with suppress(OSError):  # a failed signal to one service must not keep the rest running
            managed.child.ask_to_stop()
    for managed in services:
        with suppress(OSError):
            managed.child.stop()
        if (ended := managed.child.poll()) is not None:
            managed.exit_code = ended
        managed.state, managed.detail = "stopped", ""


def serve(home: Path) -> None:
    """Run the plan of `home` until SIGTERM or SIGINT, then remove the state file. SIGHUP: read the plan again."""
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
        with suppress(OSError):  # readers ignore the state file of an ended supervisor
            stack_state.path(home).unlink(missing_ok=True)


def run(
    supervisor: Supervisor,
    after_each_turn: Callable[[], None] = lambda: None,
    read_again: Callable[[], None] | None = None,
) -> None:
    """Keep the supervisor's services running until SIGTERM or SIGINT, then stop the services. Call `run` in the main thread.

    Args:
        after_each_turn: called after each turn; an exception ends the run.
        read_again: called between two turns after a SIGHUP. None: SIGHUP stops the services, as when a terminal is closed.
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
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # a handler, so that the wakeup fd interrupts `select`
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
