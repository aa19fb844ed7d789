"""The page behind a row: what `onefold explain` says. Kafka is asked in a thread of its own, for a few seconds at most."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from onefold.config.settings import Settings
from onefold.dashboard.reader import ROLE
from onefold.operate.explain import explain
from onefold.operate.explain.explanation import Explanation
from onefold.operate.values import moment
from onefold.printable import printable

# Each is a thread and a connection to both servers; whoever comes then is asked to come again.
ROWS_MAX = 4
# For Kafka, of what a person waits for a page.
PATIENCE_S = 5.0
# For all of it. A thread goes on after that until its own limits end it, and counts until then.
PAGE_S = 15.0


class Busy(Exception):
    """Too many rows are being explained, or this one takes too long. The message is one sentence."""


class Explainer:
    """Explains rows for the page.

    Args:
        dsn: of the page's own login.

    Attributes:
        at_work: rows that are being explained, also those that nobody waits for any more.
    """

    def __init__(self, settings: Settings, dsn: str) -> None:
        self._settings = settings
        self._dsn = dsn
        self.at_work = 0

    async def explain(self, table: str, key: Mapping[str, str]) -> Explanation:
        """What is known of a row.

        Raises:
            Busy: not now.
            UserError: there is no such table, or the key is none of its.
            psycopg.Error: the database does not answer.
        """
        if self.at_work >= ROWS_MAX:
            raise Busy("Several rows are being explained. Load the page again in a moment.")
        self.at_work += 1
        work = asyncio.create_task(asyncio.to_thread(self._explain, table, dict(key)))
        work.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(work), PAGE_S)
        except TimeoutError:
            raise Busy("This row takes too long to explain here. Ask with onefold explain instead.") from None

    def _explain(self, table: str, key: dict[str, str]) -> Explanation:
        return explain.explain(self._settings, self._dsn, table, key, patience_s=PATIENCE_S, role=ROLE)

    def _done(self, work: asyncio.Task[Explanation]) -> None:
        self.at_work -= 1
        if not work.cancelled():
            work.exception()  # looked at, also when nobody waits for it any more


def filters() -> dict[str, Any]:
    """How the page writes what comes from records, which may hold anything."""
    return {"moment": moment, "json": _json}


def _json(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))
