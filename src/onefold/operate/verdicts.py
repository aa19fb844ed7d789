"""Asks the judge, with all that it needs of the settings; and keeps the last verdict on each domain in the database, where the
dashboard finds it.
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

#: Who says it.
VERIFY, AUDIT = "verify", "audit"

#: How long the note may be held up, in seconds: who asked for a verdict has it already.
KEEP_S = 5.0
# Pauses are read at once. So long is waited for a topic without a leader.
_PAUSES_S = 3.0
# The note is for the page: it waits for no standby.
_NOTING = {"synchronous_commit": "local"}

# Of the findings; the command prints them all.
KEPT_MAX = 20
# Characters of a value, which is anybody's and may be of any length.
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
    """The verdict on a domain of the servers that are set, or of the running stack. Raises UserError when there are no servers.

    Args:
        states: whether states are compared, too.
        progress, more: as of `verify`.
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
        from onefold.operate import state_check  # the processor, which must not be loaded before there is a verdict

        state_check.add_to(verdict, settings, progress)
    if verdict.outcome == UNKNOWN and (lacks := lacking(domain, settings.postgres())):
        verdict.reason, verdict.code = lacks, str(Code.POSTGRES_RIGHT)
    if verdict.outcome == UNKNOWN and (pause := pauses.now(settings.client(), [domain], _PAUSES_S)[0].get(domain)):
        verdict.reason += f". {domain} is {pause}: `onefold resume {domain}` ends the pause"
    return verdict


def lacking(domain: str, dsn: str) -> str:
    """The rights of a verifier that are missing, in one sentence, or ""."""
    try:
        known = find().pipelines
        return grants.lacking(DatabaseRole.VERIFIER, dsn, [known[domain]] if domain in known else [], "onefold verify")
    except psycopg.Error:
        return ""  # which the verdict says


def keep(verdict: Verdict, dsn: str, judge: str = VERIFY, patience_s: float = KEEP_S) -> str:
    """Writes the verdict over the one before. What was found wrong stands until a `verify` takes it back that has compared each
    output record and each row, whoever has found it: a continuous verifier does not judge all of it, and one that begins anew has
    not seen what its predecessor saw; it may only add to that. Nor does a `verify` that cannot tell take anything back. A
    wrong state is taken back only by a `verify` that has compared the states.

    Returns "" or, where that was not possible, one sentence with the reason: a judge who may only read has judged all
    the same.
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
    """What the page shows of it: texts, for jsonb holds neither each value nor each character."""
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
