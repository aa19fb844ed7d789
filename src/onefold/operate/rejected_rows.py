"""Count the output records that the sinks rejected: `onefold.rejected` has each record with its reason."""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from onefold import postgres
from onefold.config.settings import Settings

CALL_S = 5  # one query; a healthy server answers in milliseconds

_SET_ASIDE = """
SELECT sink, records, reason FROM (SELECT sink, count(*) AS records FROM onefold.rejected GROUP BY sink) AS counted,
    LATERAL (SELECT reason FROM onefold.rejected AS one WHERE one.sink = counted.sink
             ORDER BY rejected_at DESC, topic, partition, "offset" LIMIT 1) AS newest
ORDER BY sink
"""


class SetAside(NamedTuple):
    """The rejected records of a pipeline. `reason`: of the newest."""

    records: int
    reason: str


def of_all(settings: Settings) -> dict[str, SetAside]:
    """The rejected records by pipeline; {} if the database does not answer, or the table does not exist yet."""
    try:
        with postgres.connect(settings.postgres(), "onefold status", patience_s=CALL_S) as connection:
            if connection.execute("SELECT to_regclass('onefold.rejected')").fetchone() == (None,):
                return {}
            return {sink: SetAside(*found) for sink, *found in connection.execute(_SET_ASIDE)}
    except psycopg.Error:
        return {}
