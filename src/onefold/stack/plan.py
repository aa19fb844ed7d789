"""Which services run, in which order: the plan that `up` writes and the supervisor reads."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onefold import pipelines
from onefold.config import stack_state
from onefold.pipelines import PROJECT_VARIABLE, project_file
from onefold.stack import cores, inherited
from onefold.stack.service import Ready, Service, of_command

if TYPE_CHECKING:
    from onefold.config.settings import Settings

SINK_STOP_S = 30.0  # Spark finishes the batch at hand
PROCESSOR_STOP_S = 20.0  # a processor finishes its transaction
AUDITOR_STOP_S = 10.0  # it finishes the turn at hand
WORKER_STOP_S = 45.0  # a worker comes to its next checkpoint, which takes less than its time-out
DASHBOARD_STOP_S = 5.0  # it only closes its streams
# By verb the login in the stack's PostgreSQL. A processor needs no PostgreSQL; its handlers get a login that only reads.
ROLES = {
    "migrate": "owner", "process": "reader", "work": "worker", "sink": "sink", "audit": "verifier", "dashboard": "reader",
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What the supervisor runs.

    Attributes:
        stages: services that may start together, stage after stage.
        public: what stack.json has besides the services.
    """

    stages: Sequence[Sequence[Service]]
    public: dict[str, Any]

    def write(self, home: Path) -> None:
        """Writes <home>/run/plan.json."""
        stages = [[service.as_json() for service in stage] for stage in self.stages]
        body = {"version": stack_state.VERSION, "public": self.public, "stages": stages}
        stack_state.write(home / "run" / "plan.json", body)

    @classmethod
    def read(cls, home: Path) -> Plan:
        """Reads what `write` wrote. Raises UserError when a newer Onefold did."""
        found = stack_state.load(home / "run" / "plan.json")
        return cls([[Service.from_json(service) for service in stage] for stage in found["stages"]], found["public"])

    @property
    def names(self) -> list[str]:
        """The names of all services, in order."""
        return [service.name for stage in self.stages for service in stage]


def pipeline(settings: Settings, domains: Sequence[str], public: dict[str, Any]) -> list[list[Service]]:
    """The stages after the infrastructure: topics and tables, then processors, workers, sinks and the dashboard.

    Args:
        public: {"bootstrap_servers", "postgres_dsn"} of the running infrastructure; "postgres_logins", by role the DSN of its
            login in a PostgreSQL of the stack; and "dashboard", the page's address or None for none.
    """
    # In a Kafka of the user's own, processors of another host may be in the same groups.
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
    # Spark takes the longest to start and waits for nothing that a processor does, so all start together. Not the auditors:
    # there is nothing to judge before, and they would make that wait.
    stages = [[migrate], served]
    auditors = _auditors(settings, domains, public)
    return [*stages, auditors] if auditors else stages


def _sink(settings: Settings, public: dict[str, Any], domains: Sequence[str], instance: str) -> Service:
    sink = _onefold(settings, public, f"sink-{instance}", ("sink", *domains, "--instance", instance), None, SINK_STOP_S)
    return replace(sink, inherits=inherited.SINK)


def _workers(settings: Settings, domains: Sequence[str], public: dict[str, Any]) -> list[Service]:
    """One for each domain that has jobs."""
    known = pipelines.find().pipelines
    return [
        _onefold(settings, public, f"worker-{domain}-1", ("work", domain), None, WORKER_STOP_S, needed=False)
        for domain in domains
        if domain in known and known[domain].jobs
    ]


def _auditors(settings: Settings, domains: Sequence[str], public: dict[str, Any]) -> list[Service]:
    if not settings.to_audit():
        return []
    from onefold.operate import auditing  # imports the judge, which a stack without auditors does not need

    return [
        _onefold(settings, public, f"auditor-{domain}", ("audit", domain), None, AUDITOR_STOP_S, needed=False)
        for domain in auditing.audited(settings, domains)
    ]


def _processes(settings: Settings, domain: str, domains: int) -> int:
    """Replicas are processes each of which has all tasks; else the processes share them, and none is without one where topics
    have as many partitions as new ones get.
    """
    declared = pipelines.find().pipelines.get(domain)
    replicas = settings.replicas_of(declared) if declared else 1
    if replicas > 1:
        return replicas
    return settings.processor_instances or min(cores.processes(domains), settings.partitions)


def _dashboard(settings: Settings, public: dict[str, Any]) -> list[Service]:
    if not public["dashboard"]:
        return []
    port = public["dashboard"].rpartition(":")[2]
    return [_onefold(settings, public, "dashboard", ("dashboard", "--port", port), None, DASHBOARD_STOP_S)]


def logged(service: Service, settings: Settings) -> Service:
    """The service, with as many log files of such a size as are set."""
    return replace(service, log_bytes=settings.log_file_mb * 1_000_000, log_files=settings.log_files)


def _onefold(
    settings: Settings,
    public: dict[str, Any],
    name: str,
    arguments: tuple[str, ...],
    ready: Ready | None,
    stop_s: float,
    needed: bool = True,
) -> Service:
    status = settings.home / "run" / f"{name}.status.json"
    logins = public.get("postgres_logins", {})  # a stack that an earlier release started has none
    made = environment(settings, public["bootstrap_servers"], logins.get(ROLES[arguments[0]], public["postgres_dsn"]))
    more = {"ready": ready} if ready else {}
    log = settings.home / "logs" / f"{name}.log"
    return logged(of_command(name, arguments, log, status, made, stop_s=stop_s, needed=needed, **more), settings)


def environment(settings: Settings, bootstrap_servers: str, dsn: str) -> dict[str, str]:
    """The variables of a service with these settings and servers."""
    made = {
        **settings.as_environment(),
        "ONEFOLD_HOME": str(settings.home),
        "ONEFOLD_BOOTSTRAP_SERVERS": bootstrap_servers,
        "ONEFOLD_POSTGRES_DSN": dsn,
    }
    if (project := project_file()) is not None:
        made[PROJECT_VARIABLE] = str(project.parent)  # whatever folder the service runs in
    return made
