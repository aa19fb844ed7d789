"""Keeps the services of a plan running: starts them in order, starts them again when they end, stops them in reverse
order.

Run as `python -m console.embedded.supervisor <home>` in a session of its own. It reads <home>/run/plan.json, writes
<home>/run/stack.json on every change, and ends on SIGTERM or SIGINT. It knows nothing about what the services do.
One thread only: a child's leash is tied to the thread that started it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from console.embedded import state
from console.embedded.child import Child, birth
from console.embedded.plan import Plan
from console.embedded.service import Service, is_ready

BACKOFF_FIRST = 0.2  # seconds before the first new start; doubles
BACKOFF_MAX = 10.0
STABLE_SECONDS = 30.0  # a service that lived this long starts again with BACKOFF_FIRST
TURN_STARTING = 0.1  # seconds between looks while something is starting
TURN_RUNNING = 1.0  # and while all is well; the end of a child wakes the loop at once


class Managed:
    """One service's life: pending, starting, running, waiting, restarting, done or stopped."""

    def __init__(self, service: Service, clock: Callable[[], float] = time.monotonic) -> None:
        self.service = service
        self.child = Child(service)
        self.state = "pending"
        self.detail = ""
        self.restarts = 0
        self.was_ready = False
        self.exit_code: int | None = None
        self._clock = clock
        self._failures = 0
        self._started_at = 0.0
        self._start_at = 0.0

    @property
    def settled(self) -> bool:
        """Whether the next stage may start, as far as this service is concerned."""
        return self.was_ready

    def turn(self) -> None:
        """Looks once and does what is due: start, notice readiness, notice the end."""
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
            self._look()

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
            "log": str(self.service.log),
        }

    def _start(self) -> None:
        if self.service.ready.kind == "status_file":
            Path(self.service.ready.target).unlink(missing_ok=True)  # the last process's word is not this one's
        self.child.start()
        self._started_at = self._clock()
        self.state, self.detail = "starting", ""

    def _look(self) -> None:
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
        if self._clock() - self._started_at >= STABLE_SECONDS:
            self._failures = 0
        pause = min(BACKOFF_MAX, BACKOFF_FIRST * 2**self._failures)
        self._failures += 1
        self.restarts += 1
        self._start_at = self._clock() + pause
        how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
        self.state, self.detail = "restarting", f"{how}; starts again after {pause:.1f} s"


class Supervisor:
    """Runs the stages of a plan; each stage starts when all services of the one before are ready."""

    def __init__(self, stages: Sequence[Sequence[Service]], publish: Callable[[dict[str, Any]], None]) -> None:
        self.stages = [[Managed(service) for service in stage] for stage in stages]
        self._publish = publish
        self._published: dict[str, Any] | None = None

    def turn(self) -> float:
        """Looks at every service of the stages that are due once. Returns the seconds until the next look is due."""
        busy = False
        for stage in self.stages:
            for managed in stage:
                managed.turn()
                busy = busy or managed.state in ("pending", "starting", "restarting")
            if not all(managed.settled for managed in stage):
                busy = True
                break
        self.publish()
        return TURN_STARTING if busy else TURN_RUNNING

    def publish(self) -> None:
        """Writes the state if it changed."""
        services = {managed.service.name: managed.describe() for stage in self.stages for managed in stage}
        if services != self._published:
            self._publish(services)
            self._published = services

    def stop(self) -> None:
        """Stops every stage, the last one first: all services of a stage at once, each with its own patience."""
        for stage in reversed(self.stages):
            for managed in stage:
                managed.child.ask_to_stop()
            for managed in stage:
                managed.child.stop()
                managed.state, managed.detail = "stopped", ""
            self.publish()


def serve(home: Path) -> None:
    """Runs the plan of `home` until asked to stop; then removes the state file."""
    plan = Plan.read(home)
    head = {"supervisor_pid": os.getpid(), "create_time": birth(os.getpid()), **plan.public}
    supervisor = Supervisor(plan.stages, lambda services: state.write(state.path(home), {**head, "services": services}))
    try:
        run(supervisor)
    finally:
        state.path(home).unlink(missing_ok=True)


def run(supervisor: Supervisor, after_each_turn: Callable[[], None] = lambda: None) -> None:
    """Keeps the supervisor's services running until SIGTERM or SIGINT, then stops them. Call it in the main thread."""
    stopping: list[int] = []
    waker, wake = socket.socketpair()
    for end in (waker, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stopping.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only to wake the loop
    try:
        while not stopping:
            seconds = supervisor.turn()
            after_each_turn()
            select.select([waker], [], [], seconds)
            with suppress(BlockingIOError):
                waker.recv(4096)
    finally:
        supervisor.stop()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
