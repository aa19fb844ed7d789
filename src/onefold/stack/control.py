"""Start and stop the embedded stack and single services, by the supervisor and the plan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from onefold.config import private_files, stack_state
from onefold.config.errors import UserError
from onefold.config.settings import Settings, forget_servers
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED, USAGE
from onefold.operate.progress import StageProgress
from onefold.stack import data_directory, filelock, metrics
from onefold.stack.broker import Broker
from onefold.stack.child import end_known, tail
from onefold.stack.embedded import prepare
from onefold.stack.plan import StackPlan, logged, pipeline
from onefold.stack.ports import ReservedPorts, choose_ports, of_stack
from onefold.stack.postgres import PostgresServer
from onefold.stack.service import SupervisedService

READY_S = 360.0  # long enough for the first start on a slow, busy machine
STOP_S = 90.0  # longer than the sum of the stages' stop limits
ATTEMPTS = 3  # a service with so many exits before being ready counts as failed
POLL_S = 0.05

INFRASTRUCTURE = ("kafka", "postgres")


def up(
    settings: Settings, domains: Sequence[str], only: Sequence[str], progress: StageProgress
) -> tuple[dict[str, Any], bool]:
    """Start the stack, and return when all services are ready. In a running stack, start added pipelines and stopped services,
    and stop removed pipelines.

    Args:
        domains: the pipelines to run.
        only: names of `INFRASTRUCTURE`, to start nothing else; empty for all services.

    Returns:
        The state of the stack, the content of stack.json, and whether the call started or changed the stack.

    Raises:
        UserError: a service does not become ready. A new stack is then stopped, as after an interruption by the user; a
            running stack runs on.
    """
    home = settings.home
    for number in (signal.SIGTERM, signal.SIGHUP):
        # SIGTERM, and the hangup of the terminal, stop the started services, as Ctrl-C does.
        signal.signal(number, signal.default_int_handler)
    if not settings.postgres_dsn:
        forget_servers()  # services inherit the environment of this process
    data_directory.claim(home)
    with filelock.held(home / "run" / "lock"), closing(ReservedPorts()) as keeping:
        data_directory.claim(home)  # again: a wipe that held the lock has removed marker and folders
        running = stack_state.read_running(home)
        if running:
            return (running, False) if only else _take_in(settings, domains, running, progress)
        _end_leftovers(home)
        plan = _plan(settings, domains, only, progress, keeping)
        keeping.keep(of_stack(home, plan.public))
        plan.write(home)
        supervisor = _start_supervisor(home)
        try:
            return _wait(home, plan, lambda: supervisor.poll() is None, progress), True
        except BaseException:
            progress.say("stopping what was started")
            supervisor.terminate()  # by the process handle: stack.json may not exist yet
            with suppress(subprocess.TimeoutExpired):
                supervisor.wait(STOP_S)
            stop(home)
            progress.clear()
            raise


def down(settings: Settings, wipe: bool) -> tuple[bool, list[str]]:
    """Stop the stack; with `wipe`, also remove the data.

    Returns:
        Whether the stack ran, and a sentence for each file that a wipe did not remove.

    Raises:
        UserError: `wipe`, and the folder is not the data directory of a stack (exit code 2).
    """
    home = settings.home
    if wipe:
        data_directory.refuse_foreign(home)
    if not data_directory.is_ours(home):
        return False, []
    with filelock.held(home / "run" / "lock"):
        return stop(home), data_directory.wipe(home) if wipe else []


def restart(settings: Settings, name: str, progress: StageProgress) -> dict[str, Any]:
    """Stop a service of the running stack, wait until the new process is ready, and return the entry of stack.json.

    Raises:
        UserError: the stack does not run; the name is unknown; the service is stopped; or the service is not ready in time. The
            supervisor then continues to restart the service.
    """
    home = settings.home
    with filelock.held(home / "run" / "lock"):
        running = _running(home)
        (service,) = _services(home, [name])
        before = running["services"][name]
        if service.stopped:
            raise UserError(Code.SERVICE_FAILED, f"{name} is stopped", f"Start it with `onefold start {name}`.")
        progress.say(f"stopping {name}")
        if before["pid"]:
            end_known(before["pid"], before["create_time"], service.stop_s, service.stop_signal)
        return _wait_again(home, service, before, progress)


def set_stopped(settings: Settings, names: Sequence[str], stopped: bool, progress: StageProgress) -> list[str]:
    """Stop services of the running stack, or start stopped services, and return when all are stopped or ready.

    Args:
        names: the services; empty for all services.

    Returns:
        The names of the services with a changed state.

    Raises:
        UserError: the stack does not run; a name is unknown; or a service is not stopped or ready in time.
    """
    home = settings.home
    with filelock.held(home / "run" / "lock"):
        running = _running(home)
        changed = [service.name for service in _services(home, names) if service.stopped != stopped]
        if not changed:
            return []
        now = StackPlan.read(home)
        stages = [
            [replace(service, stopped=stopped) if service.name in changed else service for service in stage]
            for stage in now.stages
        ]
        progress.say(f"{'stopping' if stopped else 'starting'} {', '.join(changed)}")
        _hand_over(home, running, stages, now.public, progress, changed)
        progress.clear()
        return changed


def kill(settings: Settings, names: Sequence[str]) -> dict[str, int]:
    """Kill the processes of services with SIGKILL, and return the pids by service. The supervisor restarts the services.

    Raises:
        UserError: the stack does not run; a name is unknown; or a service has no process.
    """
    running = _running(settings.home)
    found = {service.name: running["services"][service.name] for service in _services(settings.home, names)}
    for name, entry in found.items():
        if not entry["pid"]:
            raise UserError(Code.SERVICE_FAILED, f"{name} has no process to kill: it is {entry['state']}")
    for entry in found.values():
        end_known(entry["pid"], entry["create_time"], stop_signal=signal.SIGKILL)
    return {name: entry["pid"] for name, entry in found.items()}


def _running(home: Path) -> dict[str, Any]:
    running = stack_state.read_running(home)
    if not running:
        raise UserError(
            Code.STACK_STOPPED, f"the embedded stack in {home} is not running", "Start it with `onefold up`."
        )
    return running


def _services(home: Path, names: Sequence[str]) -> list[SupervisedService]:
    """The services with the names, or all services if `names` is empty, without tasks (readiness "done").

    Raises UserError (exit code 2) for an unknown name.
    """
    known = {one.name: one for stage in StackPlan.read(home).stages for one in stage if one.ready.kind != "done"}
    for name in names:
        if name not in known:
            raise UserError(Code.NAME_UNKNOWN, f"there is no service {name}", f"There are: {', '.join(known)}.", USAGE)
    return [known[name] for name in dict.fromkeys(names)] or list(known.values())


def _wait_again(
    home: Path, service: SupervisedService, before: dict[str, Any], progress: StageProgress
) -> dict[str, Any]:
    """Wait until a new process of the service is ready, and return the entry of stack.json. Raises UserError: see `restart`."""
    progress.say(f"waiting for: {service.name}")
    ends = before["restarts"] + bool(before["pid"])  # the supervisor counts the exit caused by this call, too
    deadline = time.monotonic() + READY_S
    what = f"was not ready again after {READY_S:.0f} s"
    while time.monotonic() < deadline:
        found: dict[str, Any] = stack_state.read_running(home).get("services", {}).get(service.name, {})
        if found.get("pid") and found["create_time"] != before["create_time"] and found["state"] == "running":
            progress.clear()
            return found
        ended = found.get("restarts", 0) - ends
        if ended >= ATTEMPTS or (ended > 0 and found["exit_code"] in (USAGE, REFUSED)):
            refuses = found["exit_code"] in (USAGE, REFUSED)
            what = f"{'refused to start again' if refuses else f'ended {ended} times'} ({_ended(found)})"
            break
        time.sleep(POLL_S)
    progress.clear()
    raise UserError(
        Code.SERVICE_FAILED,
        f"{service.name} {what}; it is tried further",
        f"Its log, {service.log}, ends with:\n{tail(service.log)}",
    )


def stop(home: Path) -> bool:
    """Stop the supervisor and the supervised services. Returns whether a process ran."""
    found = stack_state.read(home)
    ran = bool(stack_state.read_running(home))
    if ran:
        end_known(found["supervisor_pid"], found["create_time"], STOP_S)
    return _end_leftovers(home) or ran


def _end_leftovers(home: Path) -> bool:
    """End services of a killed supervisor by pid and start time, on systems without a parent-death guard."""
    services = stack_state.read(home).get("services", {}).values()
    ended = [
        end_known(service["pid"], service["create_time"])
        for service in services
        if service.get("pid") and service.get("create_time")
    ]
    stack_state.path(home).unlink(missing_ok=True)
    return any(ended)


def _plan(
    settings: Settings, domains: Sequence[str], only: Sequence[str], progress: StageProgress, keeping: ReservedPorts
) -> StackPlan:
    """Prepare the stack's folders and jars, and return the plan. A server of the user replaces the embedded server."""
    home = settings.home
    wanted = {name for name in INFRASTRUCTURE if not only or name in only}
    wanted -= {"kafka"} if settings.bootstrap_servers else set()
    wanted -= {"postgres"} if settings.postgres_dsn else set()
    asked = {name: getattr(settings, f"{name}_port") for name in wanted}
    if settings.dashboard and not only:
        asked["dashboard"] = settings.dashboard_port
    ports = choose_ports(home, **asked)
    keeping.keep(of_stack(home, {}))  # the download of jars may take minutes
    parts = prepare(
        home, ports, settings.cache, progress.say, with_database="postgres" in wanted, with_broker="kafka" in wanted
    )
    logins = {}
    if "postgres" in wanted:
        parts.database.make_logins()
        logins = parts.database.logins
    services: dict[str, PostgresServer | Broker] = {"postgres": parts.database, "kafka": parts.broker}
    public: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap_servers
        or (parts.broker.bootstrap_servers if "kafka" in wanted else None),
        "postgres_dsn": settings.postgres_dsn or logins.get("owner"),
        "postgres_logins": logins,
        "dashboard": f"http://127.0.0.1:{ports.dashboard}" if "dashboard" in asked else None,
    }
    stages = [
        [
            logged(one.service(home / "logs" / f"{name}.log"), settings)
            for name, one in services.items()
            if name in wanted
        ]
    ]
    if not only:
        stages += pipeline(settings, domains, public)
        last = {} if settings.metrics_port else stack_state.load(home / "run" / "plan.json").get("public", {})
        public["metrics"] = metrics.free_of(last.get("metrics", {}))
    return StackPlan(*metrics.placed(stages, public, settings.metrics_port))


def _start_supervisor(home: Path) -> subprocess.Popen[bytes]:
    log = home / "logs" / "supervisor.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # Each run has new logs. The logs of the last run get the ending `.before`, then the number of the file.
    logs, before = data_directory.logs(home)
    for older in before:
        older.unlink()
    for last in logs:
        name, _, number = last.name.partition(".log")
        last.replace(last.with_name(f"{name}.log.before{number}"))
    stack_state.path(home).unlink(missing_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "onefold.stack.supervisor", str(home)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=private_files.UMASK,  # services inherit the umask
        )


def _take_in(
    settings: Settings, domains: Sequence[str], running: dict[str, Any], progress: StageProgress
) -> tuple[dict[str, Any], bool]:
    """Give the running supervisor a plan with the pipelines, without stopped services. Returns the state, and whether the plan
    changed.
    """
    home = settings.home
    now = StackPlan.read(home)
    infrastructure = [
        [replace(service, stopped=False) for service in stage]
        for stage in now.stages
        if any(service.name in INFRASTRUCTURE for service in stage)
    ]
    of_pipelines = (
        pipeline(settings, domains, now.public) if len(now.stages) > len(infrastructure) else []
    )  # else: --only
    stages, public = metrics.placed([*infrastructure, *of_pipelines], now.public, settings.metrics_port)
    if stages == [list(stage) for stage in now.stages]:
        return running, False
    return _hand_over(home, running, stages, public, progress), True


def _hand_over(
    home: Path,
    running: dict[str, Any],
    stages: list[list[SupervisedService]],
    public: dict[str, Any],
    progress: StageProgress,
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Give the running supervisor another plan, and return the state when the named services, or all, match the plan."""
    if "version" not in running:  # SIGHUP would stop a supervisor of 0.1.0, and all services
        raise UserError(
            Code.STACK_RUNS,
            f"the stack in {home} was started by Onefold 0.1.0, which takes in nothing while it runs",
            "Stop it with `onefold down`, and start it again.",
        )
    plan = StackPlan(stages, {**public, "plan": public.get("plan", 0) + 1})
    plan.write(home)
    os.kill(running["supervisor_pid"], signal.SIGHUP)
    there = lambda: stack_state.alive(running["supervisor_pid"], running["create_time"])  # noqa: E731
    awaited = [[service for service in stage if not names or service.name in names] for stage in stages]
    return _wait(home, StackPlan(awaited, plan.public), there, progress, "what runs goes on, and it is tried further")


def _wait(
    home: Path,
    plan: StackPlan,
    there: Callable[[], bool],
    progress: StageProgress,
    otherwise: str = "everything that was started is stopped again",
) -> dict[str, Any]:
    """Wait until every service of the plan is ready or stopped, or has failed and is not needed. Returns the state.

    Args:
        there: whether the supervisor runs.
        otherwise: the consequence for the stack if a needed service is not ready, for the error message.
    """
    services = {service.name: service for stage in plan.stages for service in stage}
    reported: set[str] = set()
    deadline = time.monotonic() + READY_S
    while True:
        found = stack_state.read(home)
        entries = found.get("services", {}) if found.get("plan") == plan.public.get("plan") else {}
        for name, entry in ((name, entry) for name, entry in entries.items() if name in services):
            if services[name].stopped:
                _refuse_unstopped(home, name, entry)
                reported.add(name)
            elif entry["was_ready"] and name not in reported:
                reported.add(name)
                progress.done(f"{name} is ready")
            if name not in reported and _is_hopeless(services[name], entry, otherwise):
                reported.add(name)
                progress.done(f"{name} is left out: {_ended(entry)}; its log: {services[name].log}")
        if len(reported) == len(services):
            return found
        if not there():
            log = home / "logs" / "supervisor.log"
            raise UserError(
                Code.SERVICE_FAILED,
                "the supervisor ended while it started the stack",
                f"Its log, {log}, ends with:\n{tail(log)}",
            )
        unready = [name for name in services if name not in reported]
        progress.say(f"waiting for: {', '.join(unready)}")
        if time.monotonic() > deadline:
            what = f"was not ready after {READY_S:.0f} s"
            raise _not_ready(services[unready[0]], what, entries.get(unready[0], {}), otherwise)
        time.sleep(POLL_S)


def _refuse_unstopped(home: Path, name: str, entry: dict[str, Any]) -> None:
    if entry["state"] != "stopped":
        raise UserError(
            Code.STACK_RUNS,
            f"{name} was not stopped: an older Onefold, which stops no single service, started the stack in {home}",
            "Stop it with `onefold down`, and start it again.",
        )


def _is_hopeless(service: SupervisedService, entry: dict[str, Any], otherwise: str) -> bool:
    """Whether the service has failed and is not needed. Raises UserError for a failed service that the stack needs."""
    if entry["was_ready"]:
        return False
    if entry["exit_code"] in (USAGE, REFUSED):
        what = "refused to start"
    elif entry["restarts"] >= ATTEMPTS:
        what = f"ended {entry['restarts']} times before it was ready"
    else:
        return False
    if service.needed:
        raise _not_ready(service, what, entry | {"detail": _ended(entry)}, otherwise)
    return True


def _ended(entry: dict[str, Any]) -> str:
    """The cause of the last exit, in a few words. Uses `last_end`, because the state may already describe the next start."""
    last = entry.get("last_end")  # absent if a supervisor of an older Onefold runs
    return str(last["why"]) if last else str(entry["detail"]).partition(";")[0]


def _not_ready(service: SupervisedService, what: str, entry: dict[str, Any], otherwise: str) -> UserError:
    detail = f" ({entry['detail'].partition(';')[0]})" if entry.get("detail") else ""
    return UserError(
        Code.SERVICE_FAILED,
        f"{service.name} {what}{detail}; {otherwise}",
        f"Its log, {service.log}, ends with:\n{tail(service.log)}",
    )
