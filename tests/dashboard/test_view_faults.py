"""Views that end the process, hang or return something else: each is the error of its own page."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from onefold.cli import starter
from onefold.config.settings import Settings
from onefold.dashboard import live, views
from onefold.dashboard.answers import Answers
from onefold.dashboard.live import HANGS, Live
from onefold.dashboard.views import LOADING, Views
from onefold.pipelines import PROJECT_FILE, PROJECT_VARIABLE, InvalidDeclaration, find
from tests.support.waiting import PATIENCE_S

#: A view of which a test puts in what stands at its top and in `routes`.
_VIEW = """from pathlib import Path
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from onefold.view import View
{top}

def routes(page):
    {routes}

    async def asynchronous(request):
        raise SystemExit(2)

    def in_a_thread(request):
        raise SystemExit(2)

    return [Route("/asynchronous", asynchronous), Route("/in_a_thread", in_a_thread)]

VIEW = View(routes, Path(__file__).parent)
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes the view of a project of one pipeline, `orders`, as a module of a name of its own."""
    folder = tmp_path / "project"
    starter.write("orders", folder)
    monkeypatch.setenv(PROJECT_VARIABLE, str(folder))
    monkeypatch.syspath_prepend(str(folder))

    def write(module: str, top: str = "", routes: str = "") -> None:
        declared = (folder / PROJECT_FILE).read_text(encoding="utf-8")
        line = 'workload = "orders_workload"\n'
        (folder / PROJECT_FILE).write_text(declared.replace(line, f'{line}view = "{module}:VIEW"\n'), encoding="utf-8")
        (folder / f"{module}.py").write_text(_VIEW.format(top=top, routes=routes), encoding="utf-8")

    return write


async def answer_of(site: Views, path: str) -> tuple[int, str]:
    """The status and the text of an address of the view."""
    sent: list[Mapping[str, Any]] = []

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request"}

    scope = {
        "type": "http", "method": "GET", "path": f"/view/{path}", "root_path": "", "headers": [], "query_string": b"",
        "path_params": {"name": "orders"},
    }  # fmt: skip
    await site(scope, receive, send)  # type: ignore[arg-type]  # messages are dictionaries
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:]).decode()


def ask(path: str) -> tuple[int, str]:
    return asyncio.run(answer_of(Views("", Answers(), Settings()), path))


def test_a_module_that_ends_the_process_is_the_error_of_its_page(write: Callable[..., None]) -> None:
    """So it is of every command that imports a pipeline's code."""
    write("ending_view", top="import sys; sys.exit(2)")
    with pytest.raises(InvalidDeclaration, match=r"ending_view\.py:5: SystemExit: 2"):
        find()["orders"].load_view()
    status, text = ask("asynchronous")
    assert (status, "ending_view.py:5: SystemExit: 2." in text) == (500, True)


@pytest.mark.parametrize("path", ["asynchronous", "in_a_thread"])
def test_a_handler_that_ends_the_process_is_the_error_of_its_page(write: Callable[..., None], path: str) -> None:
    write(f"handler_view_{path}")
    status, text = ask(path)
    assert (status, "This view failed: SystemExit: 2." in text) == (500, True)


def test_routes_that_end_the_process_are_the_error_of_their_page(write: Callable[..., None]) -> None:
    write("routes_view", routes="raise SystemExit(2)")
    status, text = ask("asynchronous")
    assert (status, "This view failed: RuntimeError: its routes end the process." in text) == (500, True)


def test_a_module_whose_import_hangs_is_one_sentence(
    write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "LOAD_S", 0.0)
    go_on = threading.Event()
    monkeypatch.setattr(threading, "view_goes_on", go_on, raising=False)
    write("hanging_view", top=f"import threading; threading.view_goes_on.wait({PATIENCE_S})")

    async def run() -> list[tuple[int, str]]:
        site = Views("", Answers(), Settings())
        first = await answer_of(site, "asynchronous")
        go_on.set()
        monkeypatch.setattr(views, "LOAD_S", PATIENCE_S)
        return [first, await answer_of(site, "asynchronous")]

    (status, text), after = asyncio.run(run())
    assert (status, LOADING in text) == (503, True)
    assert "This view failed: SystemExit: 2." in after[1], "it is imported then"


def updates(
    read: Callable[[Any], Awaitable[Any]], render: Callable[[Any, str], Any], until: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """What a viewer is sent, up to the first update of which `until` is true."""

    async def run() -> list[dict[str, Any]]:
        found = []
        stream = Live().events("key", read, render)
        async with asyncio.timeout(PATIENCE_S):
            async for event in stream:
                found.append(json.loads(event.data or "null"))
                if until(found[-1]):
                    break
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
        return found

    return asyncio.run(run())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings follow at once, and hang at once."""
    monkeypatch.setattr(live, "EVERY_S", 0.0)
    monkeypatch.setattr(live, "READ_S", 0.01)


@pytest.mark.usefixtures("quick")
def test_a_reading_that_hangs_is_one_sentence_until_it_ends() -> None:
    """It is the one reading all the time."""
    said: list[str] = []
    told = asyncio.Event()
    readings = 0

    async def read(before: Any) -> str:
        nonlocal readings
        readings += 1
        await told.wait()
        return "read"

    def render(value: Any, trouble: str) -> Mapping[str, str]:
        said.append(trouble)
        if trouble == HANGS:
            told.set()
        return {"part": f"{value} {trouble}"}

    found = updates(read, render, lambda update: not update["trouble"])
    assert (found[0]["trouble"], found[0]["parts"]) == (HANGS, {"part": f"None {HANGS}"})
    assert (found[-1]["trouble"], found[-1]["parts"]) == ("", {"part": "read "})
    assert said == [HANGS, ""]
    assert readings == 1


@pytest.mark.usefixtures("quick")
def test_a_reading_that_ends_the_process_is_one_sentence() -> None:
    async def read(before: Any) -> str:
        raise SystemExit(2)

    (found,) = updates(read, lambda value, trouble: {}, lambda update: True)
    assert found["trouble"] == "This view failed: SystemExit: 2."


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("rendered", [None, ["part"], SystemExit(2)])
def test_parts_that_are_none_are_one_sentence(rendered: Any) -> None:
    async def read(before: Any) -> str:
        return "read"

    def render(value: Any, trouble: str) -> Any:
        if isinstance(rendered, SystemExit):
            raise rendered
        return rendered

    (found,) = updates(read, render, lambda update: True)
    assert found["trouble"].startswith("This view failed: ")


def test_a_reading_ends_with_its_last_viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "READ_S", 0.01)
    ended = asyncio.Event()

    async def read(before: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def run() -> None:
        stream = Live().events("key", read, lambda value, trouble: {})
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()

    asyncio.run(run())
