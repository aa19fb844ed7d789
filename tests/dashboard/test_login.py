"""The token of the page: without it nothing of the page is read, by a program or a browser."""

import asyncio
from pathlib import Path
from urllib.parse import urlencode

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message

from onefold.cli.main import run
from onefold.config import settings
from onefold.config.errors import UserError
from onefold.config.metrics_server import Exposed, serve
from onefold.dashboard.answers import Answers
from onefold.dashboard.login import COOKIE, TokenGuard
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from tests.operate.test_hosts import answer
from tests.support.coded import code_of, raises

TOKEN = "a token of a test 0123456789"
PATHS = ("/", "/live", "/metrics", "/tables", "/explain/a/b", "/nothing")


async def _shown(request: object) -> PlainTextResponse:
    return PlainTextResponse("the numbers")


def asked(
    path: str, headers: dict[str, str] | None = None, form: dict[str, str] | None = None
) -> tuple[int, dict[str, str], str]:
    """The status, the headers and the text of the answer of a page with a token."""
    routes = [Route(one, _shown) for one in (*PATHS, "/healthz", "/static/page.css")]
    app = TokenGuard(Starlette(routes=routes), TOKEN, Answers())
    body = urlencode(form or {}).encode()
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET" if form is None else "POST",
        "path": path,
        "scheme": "http",
        "server": ("localhost", 80),
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
    }
    asyncio.run(app(scope, receive, send))
    begin, *parts = sent
    found = {name.decode(): value.decode() for name, value in begin["headers"]}
    return begin["status"], found, b"".join(part.get("body", b"") for part in parts).decode()


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_shown(path: str) -> None:
    for wrong in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": TOKEN}, {"Cookie": f"{COOKIE}={TOKEN}"}):
        status, headers, text = asked(path, wrong)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert "the numbers" not in text
        status, headers, text = asked(path, {"Accept": "text/html,*/*", **wrong})
        assert (status, headers["location"], text) == (303, "/login", "")
    assert asked(path, {"Authorization": f"bearer {TOKEN}"})[::2] == (200, "the numbers")


def test_a_browser_logs_in_by_the_form_and_has_a_cookie_of_its_own() -> None:
    status, headers, text = asked("/login")
    assert (status, "<form" in text, "frame-ancestors 'none'" in headers["content-security-policy"]) == (
        200,
        True,
        True,
    )
    for wrong in ({"token": "x"}, {}, {"token": ""}):
        status, headers, text = asked("/login", form=wrong)
        assert (status, "set-cookie" in headers, "not the token" in text) == (401, False, True)
    status, headers, _ = asked("/login", form={"token": f" {TOKEN}\n"})
    assert (status, headers["location"]) == (303, "/")
    cookie, *rest = headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {*rest}
    assert TOKEN not in cookie
    assert asked("/", {"Cookie": cookie})[::2] == (200, "the numbers")
    assert asked("/login", form={"token": "x" * 5000})[0] == 413


@pytest.mark.parametrize("path", ["/healthz", "/static/page.css"])
def test_a_probe_and_the_form_need_no_token(path: str) -> None:
    assert asked(path)[0] == 200


def test_metrics_of_a_service_want_the_token_too() -> None:
    address = serve(Exposed("processor", ["runner"], 60.0), "127.0.0.1", 0, token=TOKEN)
    status, text = answer(f"{address}/metrics", "localhost")
    assert (status, "onefold_" in text) == (401, False)
    assert answer(f"{address}/healthz", "localhost")[0] != 401
    status, text = answer(f"{address}/metrics", "localhost", Authorization=f"Bearer {TOKEN}")
    assert (status, "onefold_" in text) == (200, True)


def test_a_page_for_other_machines_needs_a_token_or_somebody_who_means_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", "postgresql://nobody@127.0.0.1:1/none")
    # An address that no interface has: the next thing that fails.
    words = ["dashboard", "--host", "192.0.2.1"]
    assert run(words) == USAGE
    assert code_of(capsys.readouterr().err, "ONEFOLD_DASHBOARD_TOKEN_FILE") is Code.EXPOSED
    for more in (["--expose"], []):
        assert run([*words, *more]) == 1
        assert code_of(capsys.readouterr().err, "cannot be listened on") is Code.PORT_TAKEN
        monkeypatch.setenv("ONEFOLD_DASHBOARD_TOKEN", TOKEN)


def test_a_token_is_read_from_a_file_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n", encoding="utf-8")
    monkeypatch.setenv("ONEFOLD_DASHBOARD_TOKEN_FILE", str(file))
    loaded = settings.load()
    assert loaded.dashboard_token == TOKEN
    assert TOKEN not in str(loaded.as_environment())
    assert run(["config", "show"]) == 0
    assert TOKEN not in capsys.readouterr().out
    monkeypatch.setenv("ONEFOLD_DASHBOARD_TOKEN", "too short")
    with raises(UserError, Code.SETTING_WRONG, "16 characters") as told:
        settings.load()
    assert "too short" not in str(told.value)
