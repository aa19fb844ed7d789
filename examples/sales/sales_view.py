"""The page of a shop on the dashboard: its last minutes, live."""

from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onefold.view import Page, Unreadable, View

Minutes = list[tuple[Any, ...]]
LAST = "SELECT minute, orders, cents / 100.0 FROM sales.minutes WHERE shop = %s ORDER BY minute DESC LIMIT 10"


def routes(page: Page) -> list[Route]:
    """The list of shops, a shop, and the stream that keeps its page live."""

    async def minutes(shop: str) -> Minutes:
        async with page.snapshot() as connection:
            return await (await connection.execute(LAST, (shop,))).fetchall()

    async def shops(request: Request) -> Response:
        async with page.snapshot() as connection:
            rows = await (await connection.execute("SELECT DISTINCT shop FROM sales.minutes ORDER BY 1")).fetchall()
        return page.frame("shops.html", title="Shops", shops=[name for (name,) in rows])

    async def shop(request: Request) -> Response:
        name = request.path_params["shop"]
        found = await minutes(name)
        if not found:
            raise Unreadable(f"The shop {name} has no minutes", 404)
        return page.frame("shop.html", title=name, shop=name, minutes=found, trouble="")

    async def stream(request: Request) -> Response:
        name = request.path_params["shop"]

        async def read(before: Minutes | None) -> Minutes:
            return await minutes(name)

        def render(found: Minutes | None, trouble: str) -> dict[str, str]:
            return {"minutes": page.text("minutes.html", minutes=found or [], trouble=trouble)}

        return page.live(name, read, render)

    return [Route("/", shops), Route("/{shop}", shop), Route("/{shop}/live", stream)]


VIEW = View(routes, Path(__file__).parent)
