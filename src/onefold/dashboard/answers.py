"""What the page answers with: its templates, filled, under headers that let nothing in from elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from onefold.dashboard import words
from onefold.dashboard.explained import filters
from onefold.operate import pipelines

VIEWERS_MAX = (
    50  # each costs a rendering a second; above it the page answers with a sentence instead of slowing the machine
)
ITEMS_MAX, TEXT_MAX = 16, 500  # of an address: more is nobody's drill-down
PING_S = 15  # keeps proxies from closing a stream that has nothing to say

HEADERS = {
    # Nothing from elsewhere, nothing inline: a name that got into a table cannot become a program here.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",  # the numbers of a moment ago are wrong
}


class Answers:
    """Fills templates. Every page has a link to the view of each pipeline that brings one."""

    def __init__(self) -> None:
        self.templates = words.templates()
        self.templates.filters.update(filters())
        self.templates.globals["time_of"] = lambda at: words.clock(datetime.fromtimestamp(at, UTC))
        self.templates.globals["views"] = [name for name, one in pipelines.found().pipelines.items() if one.view]

    def text(self, template: str, **names: Any) -> str:
        """A template, filled."""
        return self.templates.get_template(template).render(names)

    def page(self, template: str, status: int = 200, **names: Any) -> Response:
        """A page."""
        return HTMLResponse(self.text(template, **names), status, headers=HEADERS)

    def problem(self, status: int, sentence: str) -> Response:
        """What could not be done, in one sentence."""
        return self.page("problem.html", status, title="Onefold", sentence=sentence)

    def crowded(self) -> Response:
        """No stream for one more viewer."""
        return Response("Too many people have this page open.", status_code=503, headers=HEADERS)


def items_of(request: Request) -> tuple[tuple[str, str], ...]:
    """What the address asks for; parts of it that are too much to be meant are left out."""
    items = request.query_params.multi_items()[:ITEMS_MAX]
    return tuple((name, value) for name, value in items if len(name) + len(value) <= TEXT_MAX and "\0" not in value)
