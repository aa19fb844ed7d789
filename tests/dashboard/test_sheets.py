"""The page of a sheet: its cells as they are, live, and what it says where something is missing."""

import json
import re
import shutil
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from onefold.jobs.objects.local import LocalStore
from tests.support.floor import Floor
from tests.support.shown_sheet import ShownSheet
from tests.support.site import Site

HOSTILE = '<img src=x onerror="document.title=1">&amp;\'"%{{7*7}}'


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    """Where the dashboard looks for objects, unless it is told otherwise."""
    return tmp_path / "objects"


@pytest.fixture
def budget(floor: Floor, database: str, objects: Path) -> ShownSheet:
    """A sheet with a snapshot of its entries, and one entry after it."""
    made = ShownSheet(database, LocalStore(objects), "budget")
    made.set(
        {
            "A1": "Rent", "B1": Decimal("-1234567.5"), "C1": "=B1/3", "D1": "=D2", "D2": "=D1", "E1": HOSTILE,
            "F1": f"=SUM(B1:B900)+{HOSTILE}", "G1": "x" * 32_767, "B60": 7, "AB2": 8,
        }
    )  # fmt: skip
    made.snapshot()
    made.set({"B2": 1})
    return made


def cells(text: str) -> dict[str, tuple[str, str]]:
    """By name, of the cells that hold something: (attributes, what is to be read)."""
    heads = re.findall(r'<th scope="col"[^>]*>([A-Z]+)</th>', text)
    found = {}
    for row, line in re.findall(r'<th scope="row">(\d+)</th>(.*?)</tr>', text):
        for head, (attributes, value) in zip(heads, re.findall(r"<td([^>]*)>(.*?)</td>", line), strict=True):
            if value:
                found[head + row] = attributes.strip(), value
    return found


def said(text: str) -> str:
    """The one sentence of a page that has nothing else to say."""
    (sentence,) = re.findall(r'<p class="trouble" role="alert">(.*?)</p>', text)
    return str(sentence)


def standing(text: str) -> str:
    """What is said of the entry, the snapshot and the reading."""
    return " ".join(
        re.sub(r"<[^>]*>", " ", text[text.index('id="standing"') + 1 : text.index('<form class="line"')]).split()
    )


def test_cells_as_they_are(site: Site, budget: ShownSheet) -> None:
    """Numbers to the last digit, formulas by what comes out of them, errors marked; hostile text is only text."""
    status, text = site.get("/pipelines/sheets/view/budget")
    found = cells(text)

    assert status == 200
    assert found["A1"] == ('class="text" data-chosen', "Rent")
    assert found["B1"] == ('class="number" data-content="-1234567.5"', "\N{MINUS SIGN}1,234,567.5")
    assert found["B2"] == ('class="number"', "1")
    assert found["C1"] == ('class="number formula" data-content="=B1/3" title="=B1/3"', "\N{MINUS SIGN}411,522.5")
    assert found["D1"] == ('class="error formula" data-content="=D2" title="=D2"', "#CYCLE!")
    assert found["F1"][1] == "#NAME?"
    assert "&lt;img" in found["E1"][1]
    assert "<img src=x" not in text
    assert len(found["G1"][1]) == 300
    assert "data-cut" in found["G1"][0]
    assert found.keys() == {"A1", "B1", "C1", "D1", "E1", "F1", "G1", "B2", "D2"}


def test_where_it_comes_from(site: Site, budget: ShownSheet) -> None:
    """The entry, the snapshot that was read, how many entries came after it, and how much was read for it."""
    _, text = site.get("/pipelines/sheets/view/budget")

    assert re.search(r"12 entries snapshot of entry 11 1 entry after it read: [1-9][0-9.]*.KB", standing(text))


def test_a_window_by_its_address(site: Site, budget: ShownSheet) -> None:
    """And the ways on from it; what is too much is cut, what is no window is said to be none."""
    _, text = site.get("/pipelines/sheets/view/budget?rows=51-60&cols=b-ab")
    ways = dict(re.findall(r'<a href="\?([^"]*)" data-go="(\w+)"', text))

    assert cells(text) == {"B60": ('class="number"', "7")}
    assert {way: address.replace("&amp;", "&") for address, way in ways.items()} == {
        "up": "rows=41-50&cols=B-AB", "down": "rows=61-70&cols=B-AB", "left": "rows=51-60&cols=A-AA",
        "right": "rows=51-60&cols=AC-BC",
    }  # fmt: skip
    _, text = site.get("/pipelines/sheets/view/budget?rows=1048500-1048576&cols=A-XFD")
    assert len(re.findall('<th scope="col"', text)) == 52
    assert 'data-go="down"' not in text
    for wrong in ("rows=0-5", "rows=9-2", "rows=1-1048577", "cols=A-XFE", "cols=1-2", "rows=-", "cell=B0", "cell=%00"):
        status, text = site.get(f"/pipelines/sheets/view/budget?{wrong}")
        assert (status, "written like" in said(text)) == (400, True), wrong


def test_a_cell_by_its_address(site: Site, budget: ShownSheet) -> None:
    """It is chosen, the window is where it is, and the line above says all of what was put there, without a program."""
    _, text = site.get("/pipelines/sheets/view/budget?cell=ab2")
    assert cells(text)["AB2"] == ('class="number" data-chosen', "8")
    assert '<span class="content" id="content">8</span>' in text
    _, text = site.get("/pipelines/sheets/view/budget?cell=G1")
    assert "x" * 32_767 in text
    _, text = site.get("/pipelines/sheets/view/budget?rows=11-20&cols=A-B&cell=B60")
    assert "Rows 51-60, columns A-B" in text


def test_only_the_chunks_of_the_window_are_read(
    site: Site, budget: ShownSheet, floor: Floor, database: str, objects: Path
) -> None:
    """Of a sheet of many chunks: its root, a page, and one chunk or two."""
    large = ShownSheet(database, LocalStore(objects), "large")
    large.take_in({(row, col): Decimal(row * col) for row in range(1, 20_001) for col in range(1, 11)})
    large.snapshot()
    ((size, chunks),) = floor.connection.execute("SELECT size, chunks FROM sheets.snapshots WHERE sheet_id = 'large'")
    _, text = site.get("/pipelines/sheets/view/large?rows=15001-15050")

    assert chunks > 40
    assert cells(text)["J15050"][1] == "150,500"
    (read,) = re.findall(r"read: ([0-9.]+).KB", standing(text))
    assert 64 < float(read) < size / 10_000, "a tenth at most"


def test_an_unknown_sheet(site: Site, budget: ShownSheet) -> None:
    for path in (
        "/pipelines/sheets/view/none",
        "/pipelines/sheets/view/none/live",
        "/pipelines/sheets/view/%3Cb%3E",
        "/pipelines/sheets/view/a%00b",
    ):
        status, text = site.get(path)
        assert status == 404
        assert said(text).startswith("There is no sheet ")
        assert "<b>" not in said(text)


def test_the_list_of_sheets(site: Site, budget: ShownSheet, floor: Floor) -> None:
    """Fifty at a time, by their names."""
    floor.connection.execute(
        "INSERT INTO sheets.sheets SELECT 'many-' || lpad(id::text, 3, '0'), 5, 5, 0, 0, NULL, 'x', 0, id"
        " FROM generate_series(1, 60) AS id"
    )
    _, first = site.get("/pipelines/sheets/view/")
    (budget_row,) = re.findall(
        r"<tr role=\"row\">\s*<th[^>]*><a href=\"/pipelines/sheets/view/budget\">.*?</tr>", first, re.DOTALL
    )
    (more,) = re.findall(r'href="\?(after=[^"]*)"', first)[:1]
    _, second = site.get(f"/pipelines/sheets/view/?{more}")

    values = [
        re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", budget_row, re.DOTALL)
    ]
    assert values[:6] == ["budget", "12", "1", "11", "1", "10"]
    assert [name in first for name in ("many-049", "many-050")] == [True, False]
    assert [name in second for name in ("many-049", "many-050", "many-060")] == [False, True, True]
    assert re.findall(r'href="\?(after=[^"]*)"', second) == []
    assert "No sheet comes after zzz." in site.get("/pipelines/sheets/view/?after=zzz")[1]
    assert site.get("/pipelines/sheets/view/?after=%00")[0] == 400


def test_without_their_tables_there_are_none(site: Site, floor: Floor) -> None:
    """One sentence; the link of every page stays."""
    assert 'href="/pipelines/sheets/view/"' in site.get("/")[1]
    floor.connection.execute("DROP SCHEMA sheets CASCADE")

    for path in ("/pipelines/sheets/view/", "/pipelines/sheets/view/budget"):
        status, text = site.get(path)
        assert (status, said(text)[:30]) == (404, "There are no sheets here: onef")
    assert site.get("/")[0] == 200


def test_a_missing_object_is_one_sentence(site: Site, budget: ShownSheet, objects: Path) -> None:
    """Which one; nothing of how it was noticed."""
    root = budget.snapshot()
    budget.store.delete(root)
    status, text = site.get("/pipelines/sheets/view/budget")

    assert status == 503
    assert said(text) == f"The object {root} of this sheet is not in the store of objects."
    assert "Traceback" not in site.said()


def test_a_damaged_object_is_one_sentence(site: Site, budget: ShownSheet) -> None:
    root = budget.snapshot()
    (page,) = json.loads(budget.store.get(root))["pages"]
    budget.store.delete(page)
    budget.store.put(page, b"[1, 2")
    status, text = site.get("/pipelines/sheets/view/budget")

    assert status == 503
    assert said(text).startswith("The sheet cannot be read: ")
    assert "Traceback" not in site.said()


@pytest.fixture
def nowhere(floor: Floor, database: str, bootstrap_servers: str, tmp_path: Path) -> Iterator[Site]:
    """A dashboard whose store is a file."""
    (tmp_path / "file").touch()
    settings = {"ONEFOLD_POSTGRES_DSN": database, "ONEFOLD_BOOTSTRAP_SERVERS": bootstrap_servers}
    made = Site(tmp_path, settings | {"ONEFOLD_OBJECTS": (tmp_path / "file").as_uri()})
    yield made
    made.stop()


def test_without_a_store_all_else_goes_on(nowhere: Site, budget: ShownSheet) -> None:
    """The sentence says what to set."""
    status, text = nowhere.get("/pipelines/sheets/view/budget")

    assert status == 503
    assert "ONEFOLD_OBJECTS" in said(text)
    assert nowhere.get("/")[0] == nowhere.get("/pipelines/sheets/view/")[0] == 200
    assert "Traceback" not in nowhere.said()


def updates(site: Site, path: str) -> Iterator[dict[str, Any]]:
    """What the stream sends, one after the other."""
    with urllib.request.urlopen(site.url + path, timeout=30) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


def test_the_stream_sends_only_what_is_different(site: Site, budget: ShownSheet) -> None:
    """First all, then the rows with a change and what is said of the entry; nothing when nothing came."""
    stream = updates(site, "/pipelines/sheets/view/budget/live?rows=1-5&cols=A-C")
    first = next(stream)
    assert first["parts"].keys() == {"standing", "row-1", "row-2", "row-3", "row-4", "row-5"}
    assert next(stream)["parts"] == {}
    budget.set({"B2": 5, "C3": "=B2*2", "Z4": 1})
    changed = next(update for update in stream if update["parts"])

    assert changed["parts"].keys() == {"standing", "row-2", "row-3"}
    assert ">10</td>" in changed["parts"]["row-3"]


def test_a_new_snapshot_is_said_although_no_cell_changes(site: Site, budget: ShownSheet) -> None:
    stream = updates(site, "/pipelines/sheets/view/budget/live?rows=1-5&cols=A-C")
    next(stream)
    budget.snapshot()
    for update in stream:
        assert not update["parts"].keys() - {"standing"}
        if "entry <strong>13</strong>" in update["parts"].get("standing", ""):
            break


def test_a_store_that_goes_and_comes_back_while_one_looks(site: Site, budget: ShownSheet, objects: Path) -> None:
    """What is shown stays, and is said to be old."""
    stream = updates(site, "/pipelines/sheets/view/budget/live?rows=1-5&cols=A-C")
    next(stream)
    shutil.move(objects, objects.with_name("elsewhere"))
    budget.store = LocalStore(objects.with_name("elsewhere"))
    budget.set({"B2": 6})
    troubled = next(update for update in stream if update["parts"])
    assert troubled["parts"].keys() == {"standing"}
    assert "What you see is of entry 12." in troubled["parts"]["standing"]
    shutil.rmtree(objects, ignore_errors=True)
    shutil.move(objects.with_name("elsewhere"), objects)
    healed = next(update for update in stream if update["parts"])

    assert healed["parts"].keys() == {"standing", "row-2"}
    assert 'id="trouble"' not in healed["parts"]["standing"]
