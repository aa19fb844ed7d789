"""Run the verifier with the configured servers, and store the last verdict on each pipeline in the database for the
dashboard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types.json import Jsonb

from onefold import pauses, postgres
from onefold.config.errors import first_line
from onefold.error_codes import Code
from onefold.operate import grants
from onefold.pipelines import find
from onefold.printable import printable
from onefold.rights import DatabaseRole
from onefold.verify.judge import Progress
from onefold.verify.verdict import UNKNOWN
from onefold.verify.verifier import verify

if TYPE_CHECKING:
    from onefold.config.settings import Settings
    from onefold.verify.verdict import Finding, Verdict

#: The author of a verdict.
VERIFY, AUDIT = "verify", "audit"

#: The time limit for storing a verdict, in seconds: the caller already has the verdict.
KEEP_S = 5.0
# Pauses are read at once. For a topic without a leader the read waits up to this time.
_PAUSES_S = 3.0
# The stored verdict is only for the page, so the commit waits for no standby.
_NOTING = {"synchronous_commit": "local"}

# Stored mismatches; the command prints all of them.
KEPT_MAX = 20
# Characters of a value: values come from users, and have any length.
_TEXT_MAX = 200

_KEEP = """
INSERT INTO onefold.verdict AS before (domain, outcome, reason, counts, offsets, findings, coverage, judge, judged_at)
VALUES (%(domain)s, %(outcome)s, %(reason)s, %(counts)s, %(offsets)s, %(findings)s, %(coverage)s, %(judge)s, clock_timestamp())
ON CONFLICT (domain) DO UPDATE
SET outcome   = excluded.outcome,
    reason    = excluded.reason,
    counts    = excluded.counts,
    offsets   = excluded.offsets,
    findings  = excluded.findings,
    coverage  = excluded.coverage,
    judge     = excluded.judge,
    judged_at = excluded.judged_at
WHERE (%(saw_states)s OR before.outcome <> 'invalid'
       OR NOT coalesce(before.findings -> 'kinds', '[]') @> '[["wrong state"]]')
  AND (before.outcome <> 'invalid'
   OR (excluded.judge = 'verify' AND (excluded.outcome = 'invalid' OR (excluded.outcome = 'valid' AND %(saw_all)s)))
   OR (excluded.outcome = 'invalid' AND before.judge = 'audit'
       AND (excluded.findings -> 'first') @> coalesce(before.findings -> 'first', '[]')))
"""


def ask(
    settings: Settings,
    domain: str,
    *,
    states: bool = False,
    progress: Progress = lambda what, records: None,
    **more: Any,
) -> Verdict:
    """The verdict on a pipeline, with the configured servers or the running stack. Raises UserError if there are no servers.

    Args:
        states: whether to compare states too.
        progress, more: see `verify`.
    """
    verdict = verify(
        domain,
        progress=progress,
        client=settings.client(),
        dsn=settings.postgres(),
        schema_registry_url=settings.schema_registry_url,
        objects=settings.object_store(),
        objects_endpoint=settings.objects_endpoint,
        **more,
    )
    if states:
        from onefold.operate import state_check  # imports the processor, which must not be loaded before the verdict

        state_check.add_to(verdict, settings, progress)
    if verdict.outcome == UNKNOWN and (lacks := lacking(domain, settings.postgres())):
        verdict.reason, verdict.code = lacks, str(Code.POSTGRES_RIGHT)
    if verdict.outcome == UNKNOWN and (pause := pauses.now(settings.client(), [domain], _PAUSES_S)[0].get(domain)):
        verdict.reason += f". {domain} is {pause}: `onefold resume {domain}` ends the pause"
    return verdict


def lacking(domain: str, dsn: str) -> str:
    """The missing rights of a verifier, in one sentence, or ""."""
    try:
        known = find().pipelines
        return grants.lacking(DatabaseRole.VERIFIER, dsn, [known[domain]] if domain in known else [], "onefold verify")
    except psycopg.Error:
        return ""  # the verdict reports the error


def keep(verdict: Verdict, dsn: str, judge: str = VERIFY, patience_s: float = KEEP_S) -> str:
    """Store the verdict in place of the previous one. An `invalid` verdict stays until a `verify` is invalid again, or is valid
    and has compared every output record and every row. A continuous verifier does not verify everything, and after a restart
    has not seen earlier records. So its invalid verdict replaces only a verdict of a continuous verifier, and only with all of
    the stored mismatches. A mismatch in states is replaced only by a `verify` with a comparison of states.

    Returns "" or, after a failure, one sentence with the reason: a verifier with read-only rights also gives its verdict.
    """
    values = {
        "judge": judge,
        "saw_all": not verdict.uncompared,
        "saw_states": verdict.states is not None,
        **{name: getattr(verdict, name) for name in ("domain", "outcome", "reason")},
        "counts": Jsonb(verdict.counts),
        "offsets": Jsonb(verdict.offsets),
        "coverage": Jsonb(
            {
                "from": verdict.begins,
                "outputs": verdict.outputs,
                "rows": verdict.rows,
                "uncompared": verdict.uncompared,
                "not_judged": [[_text(name), _text(why)] for name, why in verdict.not_judged.items()],
            }
        ),
        "findings": Jsonb(
            {"kinds": [*verdict.kinds().items()], "first": [_kept(one) for one in verdict.findings[:KEPT_MAX]]}
        ),
    }
    try:
        with postgres.connect(dsn, f"onefold {judge}", settings=_NOTING, patience_s=patience_s) as connection:
            connection.execute(_KEEP, values)
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
        return "the verdict was not kept for the dashboard: `onefold migrate` makes the table for it"
    except psycopg.errors.InsufficientPrivilege:
        return f"the verdict was not kept for the dashboard: {lacking(verdict.domain, dsn)}"
    except psycopg.Error as error:
        return f"the verdict was not kept for the dashboard: {first_line(error)}"
    return ""


def _kept(finding: Finding) -> dict[str, str | None]:
    """A mismatch for the page, as texts, because jsonb cannot store every value and every character."""
    wrong = [f"{name}: {_text(is_)}, should be {_text(should)}" for name, (should, is_) in finding.columns.items()]
    return {
        "kind": finding.kind,
        "where": finding.where,
        "key": ", ".join(f"{name} {_text(value)}" for name, value in finding.key.items()),
        "what": "; ".join([*wrong, *([_text(finding.text)] if finding.text else [])]),
        "output": finding.output,
        "source": finding.source,
    }


def _text(value: Any) -> str:
    return "NULL" if value is None else printable(str(value)[:_TEXT_MAX])
