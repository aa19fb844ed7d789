"""The services of a stack and the start order: `up` writes the plan, and the supervisor reads the plan."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onefold import pipelines
from onefold.config import stack_state
from onefold.pipelines import PROJECT_VARIABLE, project_file
from onefold.stack import cores, service_environment
from onefold.stack.service import Ready, SupervisedService, of_command

if TYPE_CHECKING:
    from onefold.config.settings import Settings

SINK_STOP_S = 30.0  # Spark finishes the current batch
PROCESSOR_STOP_S = 20.0  # a processor finishes the current transaction
AUDITOR_STOP_S = 10.0  # a continuous verifier finishes the current round
WORKER_STOP_S = 45.0  # a worker reaches the next checkpoint within the job's time-out
DASHBOARD_STOP_S = 5.0  # the dashboard only closes streams
# The login in the stack's PostgreSQL, by verb. A processor needs no PostgreSQL; handlers get a read-only login.
ROLES = {
    "migrate": "owner", "process": "reader", "work": "worker", "sink": "sink", "audit": "verifier", "dashboard": "reader",
}  # fmt: skip


@dataclass(frozen=True)
class StackPlan:
    """The plan of a supervisor.

    Attributes:
        stages: lists of services that may start together, stage after stage.
        public: the fields of stack.json besides the services.
    """

    stages: Sequence[Sequence[SupervisedService]]
    public: dict[str, Any]

    def write(self, home: Path) -> None:
        """Write <home>/run/plan.json."""
        stages = [[service.as_json() for service in stage] for stage in self.stages]
        body = {"version": stack_state.VERSION, "public": self.public, "stages": stages}
        stack_state.write(home / "run" / "plan.json", body)

    @classmethod
    def read(cls, home: Path) -> StackPlan:
        """Read <home>/run/plan.json. Raises UserError if a newer Onefold wrote the file."""
        found = stack_state.load(home / "run" / "plan.json")
        return cls(
            [[SupervisedService.from_json(service) for service in stage] for stage in found["stages"]], found["public"]
        )

    @property
    def names(self) -> list[str]:
        """The names of all services, in order."""
        return [service.name for stage in self.stages for service in stage]


def pipeline(settings: Settings, domains: Sequence[str], public: dict[str, Any]) -> list[list[SupervisedService]]:
    """The stages after the infrastructure: topics and tables, then processors, workers, sinks and the dashboard.

    Args:
        public: {"bootstrap_servers", "postgres_dsn"} of the running infrastructure. "postgres_logins": the DSNs of the logins
            in the stack's PostgreSQL by role. "dashboard": the page's address, or None without a dashboard.
    """
    # In the user's Kafka, processors of another host may be members of the same groups.
    host = f"{socket.gethostname()}-" if settings.bootstrap_servers else ""
    migrate = _onefold(settings, public, "migrate", ("migrate", "--keep-going", *domains), Ready("done"), 10.0)
    processors = [
        _onefold(
            settings,
            public,
            f"processor-{domain}-{number}",
            ("process", domain, "--processes", "1", "--instance", f"{host}{number}"),
            None,
            PROCESSOR_STOP_S,
            needed=False,
        )
        for domain in domains
        for number in range(1, _processes(settings, domain, len(domains)) + 1)
    ]
    sinks = [_sink(settings, public, domains, str(number)) for number in range(1, settings.sinks + 1)]
    served = [*processors, *_workers(settings, domains, public), *sinks, *_dashboard(settings, public)]
    # Spark takes the longest to start and does not depend on processors, so all start together. Continuous verifiers start
    # afterwards, because their start would delay the start of the services.
    stages = [[migrate], served]
    auditors = _auditors(settings, domains, public)
    return [*stages, auditors] if auditors else stages


def _sink(settings: Settings, public: dict[str, Any], domains: Sequence[str], instance: str) -> SupervisedService:
    sink = _onefold(settings, public, f"sink-{instance}", ("sink", *domains, "--instance", instance), None, SINK_STOP_S)
    return replace(sink, inherits=service_environment.SINK)


def _workers(settings: Settings, domains: Sequence[str], public: dict[str, Any]) -> list[SupervisedService]:
    """A worker for each pipeline with jobs."""
    known = pipelines.find().pipelines
    return [
        _onefold(settings, public, f"worker-{domain}-1", ("work", domain), None, WORKER_STOP_S, needed=False)
        for domain in domains
        if domain in known and known[domain].jobs
    ]


def _auditors(settings: Settings, domains: Sequence[str], public: dict[str, Any]) -> list[SupervisedService]:
    if not settings.to_audit():
        return []
    from onefold.operate import auditing  # imports the verifier, which a stack without auditors does not need

    return [
        _onefold(settings, public, f"auditor-{domain}", ("audit", domain), None, AUDITOR_STOP_S, needed=False)
        for domain in auditing.audited(settings, domains)
    ]


def _processes(settings: Settings, domain: str, domains: int) -> int:
    """The number of processes of a pipeline. Each replica is a process with all tasks. Without replicas, processes share the
    tasks; at most as many processes as a new topic has partitions, so that each process has a task.
    """
    declared = pipelines.find().pipelines.get(domain)
    replicas = settings.replicas_of(declared) if declared else 1
    if replicas > 1:
        return replicas
    return settings.processor_instances or min(cores.processes(domains), settings.partitions)


def _dashboard(settings: Settings, public: dict[str, Any]) -> list[SupervisedService]:
    if not public["dashboard"]:
        return []
    port = public["dashboard"].rpartition(":")[2]
    return [_onefold(settings, public, "dashboard", ("dashboard", "--port", port), None, DASHBOARD_STOP_S)]


def logged(service: SupervisedService, settings: Settings) -> SupervisedService:
    """The service with size and number of log files from the settings."""
    return replace(service, log_bytes=settings.log_file_mb * 1_000_000, log_files=settings.log_files)


def _onefold(
    settings: Settings,
    public: dict[str, Any],
    name: str,
    arguments: tuple[str, ...],
    ready: Ready | None,
    stop_s: float,
    needed: bool = True,
) -> SupervisedService:
    status = settings.home / "run" / f"{name}.status.json"
    logins = public.get("postgres_logins", {})  # absent in a stack that an earlier release started
    made = environment(settings, public["bootstrap_servers"], logins.get(ROLES[arguments[0]], public["postgres_dsn"]))
    more = {"ready": ready} if ready else {}
    log = settings.home / "logs" / f"{name}.log"
    return logged(of_command(name, arguments, log, status, made, stop_s=stop_s, needed=needed, **more), settings)


def environment(settings: Settings, bootstrap_servers: str, dsn: str) -> dict[str, str]:
    """The environment variables of a service, by the settings and the servers' addresses."""
    made = {
        **settings.as_environment(),
        "ONEFOLD_HOME": str(settings.home),
        "ONEFOLD_BOOTSTRAP_SERVERS": bootstrap_servers,
        "ONEFOLD_POSTGRES_DSN": dsn,
    }
    if (project := project_file()) is not None:
        made[PROJECT_VARIABLE] = str(project.parent)  # the service may run in another folder
    return made
