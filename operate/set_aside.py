"""What the sinks have set aside: output records that no table has, each with its reason in `onefold.rejected`."""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from onefold import postgres
from onefold.operate.settings import Settings

CALL_S = 5  # one question; a healthy server answers in milliseconds

_SET_ASIDE = """
SELECT sink, count(*), (array_agg(reason ORDER BY rejected_at DESC))[1] FROM onefold.rejected GROUP BY sink ORDER BY sink
"""


class SetAside(NamedTuple):
    """The records of a pipeline that are set aside. `reason`: of the newest."""

    records: int
    reason: str


def of_all(settings: Settings) -> dict[str, SetAside]:
    """Of each pipeline that has some; {} when the database does not answer, or has no such table yet."""
    try:
        with postgres.connect(settings.postgres(), "onefold status", patience_s=CALL_S) as connection:
            if connection.execute("SELECT to_regclass('onefold.rejected')").fetchone() == (None,):
                return {}
            return {sink: SetAside(*found) for sink, *found in connection.execute(_SET_ASIDE)}
    except psycopg.Error:
        return {}
