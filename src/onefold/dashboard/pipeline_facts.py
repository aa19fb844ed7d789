"""Collect the facts about each pipeline from the database, Kafka and the embedded stack, from which the status follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from onefold.dashboard import pipeline_shape
from onefold.dashboard.pipeline_status import Dead, PipelineFacts, PipelineStatus, Rank, StackService, Waiting, of
from onefold.dashboard.snapshot import NO_KAFKA, LagNow, ViewSnapshot, is_conclusive, where_it_arose
from onefold.dashboard.tasks import ShownTask
from onefold.dashboard.words import whole
from onefold.operate.lag import UNKNOWN
from onefold.operate.replicas import ReplicasNow

# Name prefixes of a pipeline's own services in the embedded stack. All other services are shared.
_AUDITOR = "auditor-"
_OWN = ("processor-", "worker-", _AUDITOR)
#: Key for statuses of no single pipeline.
ALL = ""


@dataclass(frozen=True)
class AskedKafka:
    """Answers from Kafka and from the embedded stack.

    Attributes:
        still_s: per pipeline, seconds without progress of a backlog: to process, and to write.
        services: of the embedded stack, as in stack.json.
        dead: counted dead letters.
        replicas: of pipelines with active-active replicas.
        tasks: of pipelines with an open page; None: Kafka did not answer.
        landed_a_second, made_a_second: offsets written per second, by the sink and by the processor; None: not known yet.
    """

    lag: LagNow
    still_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    services: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dead: Mapping[str, Dead] = field(default_factory=dict)
    replicas: Mapping[str, ReplicasNow] = field(default_factory=dict)
    tasks: Mapping[str, Sequence[ShownTask] | None] = field(default_factory=dict)
    landed_a_second: Mapping[str, float | None] = field(default_factory=dict)
    made_a_second: Mapping[str, float | None] = field(default_factory=dict)


def names(snapshot: ViewSnapshot, asked: AskedKafka) -> list[str]:
    """Pipelines to show, also those with lag but without committed rows."""
    broken = (name for name, checked in snapshot.invariants.items() if checked.broken)
    return sorted({*snapshot.engine.domains, *asked.lag.lag, *broken})


def standings(snapshot: ViewSnapshot, asked: AskedKafka, stall_s: float) -> dict[str, Sequence[PipelineStatus]]:
    """Statuses of each pipeline; under `ALL` those of the shared services, if there are any."""
    found: dict[str, Sequence[PipelineStatus]] = {
        name: of(facts(name, snapshot, asked), stall_s) for name in names(snapshot, asked)
    }
    together = of_services(snapshot, asked, stall_s)
    return found | ({ALL: together} if together else {})


def of_services(snapshot: ViewSnapshot, asked: AskedKafka, stall_s: float) -> Sequence[PipelineStatus]:
    """Statuses of the shared services; empty when all are well."""
    shared = [one for one in services(ALL, asked.services, snapshot.engine.taken_at) if one.shared]
    return [
        one
        for one in of(PipelineFacts(ALL, snapshot.engine.taken_at, services=shared), stall_s)
        if one.rank < Rank.WELL
    ]


def facts(name: str, snapshot: ViewSnapshot, asked: AskedKafka) -> PipelineFacts:
    """Collect the facts about one pipeline."""
    domain = snapshot.engine.domains.get(name)
    lag = asked.lag.lag.get(name, UNKNOWN)
    fold_s, land_s = asked.still_s.get(name, (0.0, 0.0))
    checked = snapshot.invariants.get(name)
    return PipelineFacts(
        name=name,
        now=snapshot.engine.taken_at,
        landed=domain is not None and domain.landed > 0,
        verdict=domain.verdict if domain else None,
        to_fold=Waiting(lag.input_events, lag.input_s, fold_s),
        to_land=Waiting(lag.output_events, lag.output_s, land_s),
        silent="" if asked.lag.problem == NO_KAFKA else asked.lag.problem,
        unknown="" if asked.lag.problem else lag.no_inputs or lag.no_outputs,
        held=[one for one in asked.lag.held if _is_of(name, one.topic)],
        partitions=asked.lag.partitions.get(name, ""),
        paused=asked.lag.paused.get(name, ""),
        dead=asked.dead.get(name),
        rejected=domain.rejected if domain else 0,
        queues=[one for one in snapshot.jobs if _is_of(name, one.queue)],
        services=services(name, asked.services, snapshot.engine.taken_at),
        broken=checked.broken if checked else (),
        unchecked=checked.unchecked if checked else (),
        sums=_sums(name, snapshot, asked.lag),
        uncompared=_uncompared(name, snapshot),
    )


def services(name: str, running: Mapping[str, Mapping[str, Any]], now: datetime) -> list[StackService]:
    """List the processes of a pipeline, and the shared ones.

    Args:
        now: database time; a later time from the stack is replaced by `now`.
    """
    found = []
    for service, entry in running.items():
        shared = not service.startswith(_OWN)
        number = service.rpartition("-")[2]
        mine = [f"{_AUDITOR}{name}", *(f"{kind}{name}-{number}" for kind in _OWN)]
        if not shared and service not in mine:
            continue
        end = entry.get("last_end") or {}
        at = datetime.fromtimestamp(end["at"], UTC) if end else None
        ended_at = None if at is None else min(at, now)
        # A supervisor of an older version does not record the position in the log.
        place = (entry.get("log", ""), end["log_at"], end.get("log_file", 0)) if "log_at" in end else None
        found.append(
            StackService(service, entry["state"], entry["restarts"], end.get("why", ""), ended_at, shared, place)
        )
    return found


def _is_of(name: str, topic: str) -> bool:
    """Whether a topic or a queue belongs to a pipeline, by prefix or by topology."""
    shape = pipeline_shape.of(name)
    return topic.startswith(f"{name}.") or (shape is not None and topic in (*shape.inputs, *shape.outputs))


def _sums(name: str, snapshot: ViewSnapshot, lag: LagNow) -> tuple[str, str] | None:
    """Describe the worst fault in the sums of a pipeline's rollups."""
    agreed = {title: one for (pipeline, title), one in snapshot.agreements.items() if pipeline == name}
    for title, one in agreed.items():
        if one.adds_up is False:
            return (
                "has levels that do not add up",
                f"In {title!r} the sums of one level differ from another level's sums.",
            )
    for title, one in agreed.items():
        if one.differing and is_conclusive(snapshot.engine.taken_at, name, one.reported_at, lag):
            many = "1 sum is" if one.differing == 1 else f"{whole(one.differing)} sums are"
            detail = f"Nothing is on the way, and {many} not the same in {title!r}. {where_it_arose(snapshot, name)}"
            return "differs from its producer", detail.rstrip()
    return None


def _uncompared(name: str, snapshot: ViewSnapshot) -> list[str]:
    """Rollups of a pipeline whose sums were not compared, each as a sentence."""
    named = snapshot.agreements.items()
    return [f"{title}: {one.problem}" for (pipeline, title), one in named if pipeline == name and one.problem]
