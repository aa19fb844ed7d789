"""Keeps the last verdict on each domain in the database, where the dashboard finds it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import psycopg
from psycopg.types.json import Jsonb

from onefold.operate.errors import first_line

if TYPE_CHECKING:
    from onefold.proof.verdict import Verdict

CONNECT_S = 5  # the database has just answered the judge

_KEEP = """
INSERT INTO onefold.verdict (domain, outcome, reason, counts, offsets, judged_at)
VALUES (%(domain)s, %(outcome)s, %(reason)s, %(counts)s, %(offsets)s, clock_timestamp())
ON CONFLICT (domain) DO UPDATE
SET outcome   = excluded.outcome,
    reason    = excluded.reason,
    counts    = excluded.counts,
    offsets   = excluded.offsets,
    judged_at = excluded.judged_at
"""


def keep(verdict: Verdict, dsn: str) -> str:
    """Writes the verdict over the one before. Returns "" or, where that was not possible, one sentence with the reason:
    a judge who may only read has judged all the same.
    """
    values = asdict(verdict) | {"counts": Jsonb(verdict.counts), "offsets": Jsonb(verdict.offsets)}
    try:
        with psycopg.connect(dsn, connect_timeout=CONNECT_S) as connection:
            connection.execute(_KEEP, values)
    except psycopg.errors.UndefinedTable:
        return "the verdict was not kept for the dashboard: `onefold prepare` makes the table for it"
    except psycopg.Error as error:
        return f"the verdict was not kept for the dashboard: {first_line(error)}"
    return ""
