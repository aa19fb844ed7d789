"""Run the continuous verifier as a service. Its results go to the log, the metrics, /healthz, and the database for the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from math import inf
from typing import TYPE_CHECKING, Any

import structlog

from onefold import exit_codes
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate import pipelines, verdicts
from onefold.pauses import Switches
from onefold.printable import printable
from onefold.process import ServiceProcess
from onefold.status_file import Status
from onefold.telemetry import (
    AUDIT_BEHIND_S,
    AUDIT_CYCLE_S,
    AUDIT_FINDINGS,
    AUDIT_OUTPUTS,
    AUDIT_READ,
    AUDIT_ROWS,
    AUDIT_WAITING,
    Telemetry,
)
from onefold.verify.audit.auditor import Auditor, AuditStatus, refusal
from onefold.verify.audit.pace import PACE
from onefold.verify.loading import UnknownDomain, workload
from onefold.verify.verdict import EXIT_CODES, INVALID, UNKNOWN, Verdict

if TYPE_CHECKING:
    from onefold.config.settings import Settings
    from onefold.verify.verdict import Finding

#: In ONEFOLD_AUDITED: each pipeline that a continuous verifier can verify.
ALL = "all"
# Characters of the first mismatch in a sentence: values come from users, and have any length.
_FIRST_MAX = 400
# The largest age of the verdict on the page while the outcome is unchanged.
_KEEP_EVERY_S = 10.0

log = structlog.get_logger()


def checked(domain: str) -> None:
    """Raises UserError (exit code 2), with the reason, for a pipeline that cannot be audited."""
    if reason := _refusal(domain):
        raise UserError(Code.ARGUMENT_WRONG, reason, exit_code=USAGE)


def audited(settings: Settings, domains: Sequence[str]) -> list[str]:
    """Select the pipelines that the settings list for auditing. Raises UserError (exit code 2) for an unknown pipeline, or for
    a listed pipeline that cannot be audited.
    """
    wanted = settings.to_audit()
    if wanted == [ALL]:
        return [domain for domain in domains if not _refusal(domain)]
    for name in pipelines.checked(wanted):
        checked(name)
    return [domain for domain in domains if domain in wanted]


def _refusal(domain: str) -> str:
    """The reason in one sentence; "" if the pipeline can be audited."""
    try:
        return refusal(workload(domain))
    except UnknownDomain as error:
        return str(error)


def audit(
    settings: Settings,
    domain: str,
    telemetry: Telemetry,
    process: ServiceProcess,
    *,
    once: bool = False,
    until_found: bool = False,
    timeout_s: float = 60.0,
) -> int:
    """Verify a pipeline continuously until the process is stopped. Returns the exit code: 1 after a mismatch. Raises UserError
    (exit code 2) for a missing right in PostgreSQL.

    Args:
        process: after a mismatch the status remains running, because the verification continues.
        once: end when every row has been compared once, with the exit code of a verdict.
        until_found: end at the first mismatch.
        timeout_s: with `once`, the time limit once everything has been read.
    """
    if lacks := verdicts.lacking(domain, settings.postgres()):
        raise UserError(Code.POSTGRES_RIGHT, lacks, exit_code=exit_codes.UNKNOWN)
    auditor = Auditor(
        domain,
        client=settings.client(),
        dsn=settings.postgres(),
        schema_registry_url=settings.schema_registry_url,
        checkpoints=settings.checkpoints(),
        objects=settings.object_store(),
        objects_endpoint=settings.objects_endpoint,
    )
    process.status.write("running", "it has just begun")
    keep = lambda verdict: verdicts.keep(verdict, settings.postgres(), verdicts.AUDIT)  # noqa: E731
    teller = Teller(domain, telemetry, process.status, keep)
    deadline: list[float] = []

    def enough(standing: AuditStatus) -> bool:
        if standing.findings and until_found:
            return True
        if not once:
            return False
        deadline.append(time.monotonic() + timeout_s)
        known = standing.cycle_s is not None and standing.outcome != UNKNOWN
        return known or time.monotonic() > deadline[0]

    def tell(standing: AuditStatus) -> None:
        paused.changed()  # a pipeline that is paused on purpose is not stalled
        teller.tell(standing)

    with closing(Switches(settings.client(), [domain], telemetry)) as paused, closing(auditor):
        standing = auditor.run(tell, process.stop.wait, enough)
    teller.keep(standing)
    log.info("the audit has ended", domain=domain, **_outcome(standing))
    if process.stop.is_set() and standing.outcome != INVALID:
        return 0
    return EXIT_CODES[standing.outcome]


class Teller:
    """Reports the results of a continuous verifier: log, metrics, health, status file, and the verdict for the page.

    Args:
        keep: writes a verdict to the place where the page reads verdicts. Returns "", or the reason of a failure.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        domain: str,
        telemetry: Telemetry,
        status: Status,
        keep: Callable[[Verdict], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._domain = domain
        self._telemetry = telemetry
        self._status = status
        self._keep = keep
        self._told: dict[str, int] = {}
        self._said = ("", "")
        self._unkept = ""
        self._kept_at = 0.0
        self._moved_at = clock()
        self._reads = self._rows = 0
        self._behind_s = self._nearest_s = inf

    def tell(self, standing: AuditStatus) -> None:
        """Report the status after each step."""
        for finding in standing.found:
            log.error("divergence", domain=self._domain, **_words(finding))
        now = self._clock()
        if self._gets_on(standing):
            self._moved_at = now
        self._figures(standing)
        self._status.write("waiting" if standing.troubled else "running", f"{standing.outcome}: {standing.reason}")
        if standing.unkept != self._unkept:
            self._unkept = standing.unkept
            if standing.unkept:
                log.warning(standing.unkept, domain=self._domain)
        said = standing.outcome, standing.reason
        if said != self._said:
            log.info("audited", domain=self._domain, **_outcome(standing))
            self._said = said
            self.keep(standing)
        elif now - self._kept_at > _KEEP_EVERY_S:
            self.keep(standing)

    def keep(self, standing: AuditStatus) -> None:
        """Write the verdict for the page. While there is no outcome yet, the previous verdict stays on the page."""
        self._kept_at = self._clock()
        if standing.outcome == UNKNOWN and standing.cycle_s is None and not standing.troubled:
            return
        verdict = Verdict(
            self._domain,
            standing.outcome,
            f"{_said(standing)} (onefold audit)",
            counts=standing.counts,
            findings=standing.findings,
            offsets=standing.offsets,
            code=standing.code,
            outputs=standing.judged,
            rows=standing.rows,
            not_judged=standing.not_judged,
        )
        if problem := self._keep(verdict):
            log.warning(problem, domain=self._domain)

    def _gets_on(self, standing: AuditStatus) -> bool:
        """Whether the verifier makes progress: a known outcome, or an advance since the last step. The steps alone are no
        progress.
        """
        if standing.troubled:
            return False
        if standing.reads:  # a verifier that always starts over never exceeds its earlier count
            more = standing.reads > self._reads
            self._reads = max(self._reads, standing.reads)
            return more
        more, nearer = standing.rows > self._rows, self._comes_nearer(standing.behind_s)
        self._reads, self._rows = 0, standing.rows
        return standing.outcome != UNKNOWN or (more if standing.cycle_s is None else nearer)

    def _comes_nearer(self, behind_s: float | None) -> bool:
        """Whether a verifier that is behind has caught up a little since the last comparison. Between comparisons `behind_s`
        grows with the clock.
        """
        before, self._behind_s = self._behind_s, inf if behind_s is None else behind_s
        if self._behind_s >= before:
            return False
        least, self._nearest_s = self._nearest_s, self._behind_s
        return PACE.behind_s < self._behind_s < least

    def _figures(self, standing: AuditStatus) -> None:
        told, domain = self._telemetry, self._domain
        amounts = {AUDIT_READ: standing.records, AUDIT_OUTPUTS: standing.judged, AUDIT_ROWS: standing.rows}
        for name, amount in amounts.items():
            # A verifier that starts over also counts from 0.
            told.add(name, max(0, amount - self._told.get(name, 0)), domain=domain)
            self._told[name] = amount
        told.put(AUDIT_FINDINGS, len(standing.findings), domain=domain)
        told.put(AUDIT_WAITING, standing.waiting, domain=domain)
        if standing.behind_s is not None:
            told.put(AUDIT_BEHIND_S, standing.behind_s, domain=domain)
        if standing.cycle_s is not None:
            told.put(AUDIT_CYCLE_S, standing.cycle_s, domain=domain)
        told.stands(domain, "", self._moved_at, standing.reason)
        told.faulty(domain, _said(standing) if standing.findings else "")


def _outcome(standing: AuditStatus) -> dict[str, str]:
    """The outcome for a log line."""
    words = {"outcome": standing.outcome, "reason": standing.reason, "code": standing.code}
    return {name: value for name, value in words.items() if value}


def _said(standing: AuditStatus) -> str:
    """The reason, with the first mismatch if there is any."""
    if not standing.findings:
        return standing.reason
    words = ", ".join(f"{name} {value}" for name, value in _words(standing.findings[0]).items())
    more = f", and {standing.more:,} more records of the same rows and keys" if standing.more else ""
    return f"{standing.reason}{more}; the first: {printable(words[:_FIRST_MAX])}"


def _words(finding: Finding) -> dict[str, Any]:
    """The fields of a mismatch for a log line: the row or record, and the wrong values."""
    key = ", ".join(f"{name} {value}" for name, value in finding.key.items())
    wrong = [f"{name}: {found}, should be {right}" for name, (right, found) in finding.columns.items()]
    words = {
        "kind": finding.kind,
        "where": finding.where,
        "key": key,
        "wrong": "; ".join(wrong),
        "output": finding.output,
        "source": finding.source,
        "text": finding.text,
    }
    return {name: value for name, value in words.items() if value}
