"""Login with a token: a header for programs, a form and a cookie for browsers."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from onefold.config import access_token
from onefold.dashboard.answers import HEADERS, Answers

LOGIN = "/login"
COOKIE = "onefold"
# Without login: the login page needs the static files, and a health probe has no token.
_OPEN = ("/static/", "/healthz")
_FORM_BYTES_MAX = 4096


class TokenGuard:
    """Middleware that refuses requests without the token. Browsers are redirected to the form."""

    def __init__(self, app: ASGIApp, token: str, answers: Answers) -> None:
        self._app, self._token, self._answers = app, token, answers
        self._cookie = access_token.cookie(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["path"].startswith(_OPEN):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        if scope["path"] == LOGIN:
            await (await self._log_in(request))(scope, receive, send)
        elif self._is_known(request):
            await self._app(scope, receive, send)
        else:
            await _refusal(request.headers)(scope, receive, send)

    def _is_known(self, request: Request) -> bool:
        given = request.cookies.get(COOKIE, "")
        return access_token.is_token(given, self._cookie) or access_token.allows(
            request.headers.get("authorization"), self._token
        )

    async def _log_in(self, request: Request) -> Response:
        if request.method != "POST":
            return self._answers.page("login.html", title="Onefold", wrong=False)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _FORM_BYTES_MAX:
                return PlainTextResponse("The form is too large.", 413, headers=HEADERS)
        (given,) = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[:1]
        if not access_token.is_token(given.strip(), self._token):
            return self._answers.page("login.html", 401, title="Onefold", wrong=True)
        answer = RedirectResponse("/", 303, headers=HEADERS)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, self._cookie, httponly=True, samesite="strict", secure=secure)
        return answer


def _refusal(headers: Headers) -> Response:
    if "text/html" in headers.get("accept", ""):
        return RedirectResponse(LOGIN, 303, headers=HEADERS)
    text = "This page wants the token of ONEFOLD_DASHBOARD_TOKEN, as in the header Authorization: Bearer ...\n"
    return PlainTextResponse(text, 401, headers={**HEADERS, "WWW-Authenticate": "Bearer"})
