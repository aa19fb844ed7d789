"""Render the templates, under headers that forbid content from elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from onefold.dashboard import words
from onefold.dashboard.explained import filters
from onefold.operate import pipelines

VIEWERS_MAX = 50  # each viewer costs a rendering per second; above the limit the page refuses with a message
ITEMS_MAX, TEXT_MAX = 16, 500  # of an address: no link of the page has more
PING_S = 15  # keeps proxies from closing an idle stream

HEADERS = {
    # No foreign and no inline content, so that a name in a table cannot run as a script.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",  # a cached page would show old numbers
}


class Answers:
    """Renderer of templates. Every page links to the view of each pipeline that has a view."""

    def __init__(self) -> None:
        self.templates = words.templates()
        self.templates.filters.update(filters())
        self.templates.globals["time_of"] = lambda at: words.clock(datetime.fromtimestamp(at, UTC))
        self.templates.globals["views"] = [name for name, one in pipelines.found().pipelines.items() if one.view]

    def text(self, template: str, **names: Any) -> str:
        """Render a template."""
        return self.templates.get_template(template).render(names)

    def page(self, template: str, status: int = 200, **names: Any) -> Response:
        """Render a template as a response."""
        return HTMLResponse(self.text(template, **names), status, headers=HEADERS)

    def problem(self, status: int, sentence: str) -> Response:
        """Render an error page with one sentence."""
        return self.page("problem.html", status, title="Onefold", sentence=sentence)

    def crowded(self) -> Response:
        """Refuse a stream, because too many are open."""
        return Response("Too many people have this page open.", status_code=503, headers=HEADERS)


def items_of(request: Request) -> tuple[tuple[str, str], ...]:
    """Parse the query of an address, without overlong and surplus parts."""
    items = request.query_params.multi_items()[:ITEMS_MAX]
    return tuple((name, value) for name, value in items if len(name) + len(value) <= TEXT_MAX and "\0" not in value)
