"""A pipeline's own pages on the dashboard, for content beyond panels.

    from pathlib import Path

    from starlette.responses import Response
    from starlette.routing import Route

    from onefold.view import Page, View

    def routes(page: Page) -> list[Route]:
        async def shops(request) -> Response:
            async with page.snapshot() as connection:
                rows = await (await connection.execute("SELECT shop, orders FROM sales.minutes")).fetchall()
            return page.frame("shops.html", title="Shops", rows=rows)

        return [Route("/", shops)]

    VIEW = View(routes, Path(__file__).parent)

The pipeline declares the view: `view = "sales_view:VIEW"`. The address of the routes is `/pipelines/sales/view/`. `folder` has
`templates/` (Jinja, with `base.html` as the frame of a page and `view.html` as the frame of a live page) and `static/`, with
the address `/pipelines/sales/static/`. The dashboard imports the module at the first request of the page. A failing view
affects only its own page.

All pages of the dashboard share an event loop, so a blocking `async def` stops every page. A blocking handler must be a `def`,
which Starlette runs in a thread. A `read` is always an `async def`, and must use `asyncio.to_thread` for blocking calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from onefold.jobs.protocols import ReadableObjects

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from psycopg import AsyncConnection, Connection
    from starlette.responses import Response
    from starlette.routing import BaseRoute

__all__ = ["Page", "ReadableObjects", "Unreadable", "View"]

T = TypeVar("T")


class Unreadable(Exception):
    """The content of a page cannot be read: the reason, and the HTTP status of the response."""

    def __init__(self, reason: str, status: int = 503) -> None:
        super().__init__(reason)
        self.status = status


class Page(Protocol):
    """The interface of the dashboard for the routes of a view.

    Attributes:
        path: The base address of the routes.
    """

    path: str

    def snapshot(self) -> AbstractAsyncContextManager[AsyncConnection[tuple[Any, ...]]]:
        """Open a connection in a read-only transaction, with a consistent snapshot of the database for the block.

        The role is `onefold_reader`, and the time-out of a statement is four seconds.
        """

    def connect(self) -> Connection[tuple[Any, ...]]:
        """Open a blocking connection for a thread, with the same role and limits, in autocommit mode. The caller closes it."""

    def objects(self) -> ReadableObjects:
        """Open the store of objects for a thread. Raises UserError for a store that cannot be used."""

    def frame(self, template: str, status: int = 200, **names: Any) -> Response:
        """The response: a template of the view with these names, including `title`."""

    def text(self, template: str, **names: Any) -> str:
        """A template of the view with these names, as a part for `live`."""

    def live(
        self,
        key: Hashable,
        read: Callable[[T | None], Awaitable[T]],
        render: Callable[[T | None, str], Mapping[str, str]],
    ) -> Response:
        """A stream of parts of the page, for `data-stream` of a template that extends `view.html`.

        Args:
            key: All viewers with an equal key share a call of `read` per second.
            read: Return the present value, or the previous value itself if unchanged. The argument is the previous value, or
                None. After ten seconds, the page reports a hanging read.
            render: Return HTML by the id of the element to replace. The arguments are the value (None before the first) and the
                reason of a failed read, or "". The stream only sends changed parts.
        """


@dataclass(frozen=True)
class View:
    """The pages of a pipeline.

    Attributes:
        routes: Return the routes. Called once; Starlette's handlers get requests.
        folder: The folder of `templates/` and, if the pages need files, `static/`.
    """

    routes: Callable[[Page], Sequence[BaseRoute]]
    folder: Path
