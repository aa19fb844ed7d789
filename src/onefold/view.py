"""Pages of a pipeline's own on the dashboard, where panels are not enough.

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

The pipeline declares it: `view = "sales_view:VIEW"`. The routes lie at `/pipelines/sales/view/`, and `folder` has `templates/`
(Jinja, where `base.html` is the page's frame and `view.html` the frame of a live page) and `static/`, whose files lie at
`/pipelines/sales/static/`. The module is imported when somebody opens the page. A view that fails is the error of its page alone.

All pages of the dashboard share one event loop: an `async def` that blocks stops every page while it does. A handler that blocks
is a `def`, which Starlette runs in a thread; in a `read`, which is always `async def`, `asyncio.to_thread` does it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from psycopg import AsyncConnection, Connection
    from starlette.responses import Response
    from starlette.routing import BaseRoute

__all__ = ["Page", "Unreadable", "View"]

T = TypeVar("T")


class Unreadable(Exception):
    """What a page should show cannot be read: the reason, and the HTTP status of the answer."""

    def __init__(self, reason: str, status: int = 503) -> None:
        super().__init__(reason)
        self.status = status


class Page(Protocol):
    """What the routes of a view are given.

    Attributes:
        path: the address that they lie below.
    """

    path: str

    def snapshot(self) -> AbstractAsyncContextManager[AsyncConnection[tuple[Any, ...]]]:
        """A connection inside of a read-only transaction: all that is read in the block is of one moment. The role is
        `onefold_reader`, and a statement has four seconds.
        """

    def connect(self) -> Connection[tuple[Any, ...]]:
        """A connection for a thread, with the same role and limits, in autocommit mode: it blocks. The caller closes it."""

    def frame(self, template: str, status: int = 200, **names: Any) -> Response:
        """The answer: a template of the view with these names, `title` among them."""

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
            key: all viewers of an equal key share one reading a second.
            read: gets the value that it returned last, or None, and returns the present one; the same object if nothing changed.
                After ten seconds the page says that it hangs.
            render: gets the value (None before the first) and the reason why the last reading failed, or "". It returns HTML by
                the id of the element that it replaces; only parts that changed are sent.
        """


@dataclass(frozen=True)
class View:
    """The pages of a pipeline.

    Attributes:
        routes: called once, returns the routes; Starlette's handlers get requests.
        folder: has `templates/` and, if the pages need files, `static/`.
    """

    routes: Callable[[Page], Sequence[BaseRoute]]
    folder: Path
