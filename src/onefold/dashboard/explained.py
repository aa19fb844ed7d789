"""Pages that ask Kafka on request: the origin of a row, and the topics of a pipeline with their newest records. Each request
runs in a thread, for a few seconds at most."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from onefold.config.settings import Settings
from onefold.dashboard import topics
from onefold.dashboard.reader import ROLE
from onefold.operate.explain import explain
from onefold.operate.explain.explanation import Explanation
from onefold.operate.shown_values import moment
from onefold.printable import printable

T = TypeVar("T")

# Each request takes a thread and a connection to both servers. Above the limit, the page answers "try again".
ROWS_MAX = 4
# Kafka's share of the time that a person waits for a page.
PATIENCE_S = 5.0
# For the whole request. The thread continues until its own limits end it, and counts as work until then.
PAGE_S = 15.0


class Busy(Exception):
    """Too many requests at once, or a request takes too long. The message is one sentence."""


class Explainer:
    """Executor of requests to Kafka.

    Args:
        dsn: connection string of the dashboard's own login.

    Attributes:
        at_work: number of running requests, with those that exceeded PAGE_S.
    """

    def __init__(self, settings: Settings, dsn: str) -> None:
        self._settings = settings
        self._dsn = dsn
        self.at_work = 0

    async def explain(self, table: str, key: Mapping[str, str]) -> Explanation:
        """Explain a row.

        Raises:
            Busy: too many requests, or too slow.
            UserError: the table does not exist, or the key does not fit the table.
            psycopg.Error: the database does not answer.
        """
        return await self._ask(lambda: self._explain(table, dict(key)), "onefold explain")

    async def topics_of(self, name: str) -> Sequence[topics.Shown]:
        """List the topics of a pipeline. Raises Busy, and the errors of `topics.of_pipeline`."""
        return await self._ask(lambda: topics.of_pipeline(name, self._settings), "onefold kafka topics")

    async def newest(self, name: str, topic: str) -> topics.Newest | None:
        """Read the newest records of a topic. Raises Busy, and the errors of `topics.newest`."""
        return await self._ask(lambda: topics.newest(name, topic, self._settings), "onefold consume")

    async def _ask(self, question: Callable[[], T], instead: str) -> T:
        if self.at_work >= ROWS_MAX:
            raise Busy("Several such pages are being asked for. Load the page again in a moment.")
        self.at_work += 1
        work = asyncio.create_task(asyncio.to_thread(question))
        work.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(work), PAGE_S)
        except TimeoutError:
            raise Busy(f"This takes too long here. Ask with {instead} instead.") from None

    def _explain(self, table: str, key: dict[str, str]) -> Explanation:
        return explain.explain(self._settings, self._dsn, table, key, patience_s=PATIENCE_S, role=ROLE)

    def _done(self, work: asyncio.Task[Any]) -> None:
        self.at_work -= 1
        if not work.cancelled():
            work.exception()  # retrieved, or else asyncio logs the exception after a timeout


def filters() -> dict[str, Any]:
    """Template filters for values from records, which may contain anything."""
    return {"moment": moment, "json": _json}


def _json(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))
