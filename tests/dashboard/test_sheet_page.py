"""A sheet in a real browser: what changes while one looks, and that everybody can look."""

import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from onefold.jobs.objects.local import LocalStore
from tests.support.floor import Floor
from tests.support.shown_sheet import ShownSheet
from tests.support.site import READERS, SOON_S, LivePage
from tests.support.waiting import eventually

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=1</script>&amp;'
LIST = "/pipelines/sheets/view/"
ADDRESS = f"{LIST}budget"


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    """Where the dashboard looks for objects."""
    return tmp_path / "objects"


@pytest.fixture
def budget(floor: Floor, database: str, objects: Path) -> ShownSheet:
    """A sheet with all kinds of cells."""
    made = ShownSheet(database, LocalStore(objects), "budget")
    made.set(
        {
            "A1": "Rent",
            "B1": 1200,
            "C1": "=B1*2",
            "D1": "=D1",
            "E1": "a long text that goes on over empty cells",
            "B51": 3,
        }
    )
    made.snapshot()
    made.set({"B2": Decimal("0.5")})
    return made


@pytest.fixture
def sheet(page: LivePage, budget: ShownSheet) -> Iterator[LivePage]:
    """Its page, open."""
    page.open(ADDRESS)
    page.soon("#state", "live,")
    yield page
    page.emulate()


def cell(name: str) -> str:
    """A selector: the cell of that name, in a window from A1 on."""
    return f"#row-{name[1:]} td:nth-child({ord(name[0]) - ord('A') + 2})"


def focus(page: LivePage) -> str:
    """The name of the cell that has the focus."""
    return str(page.ask(_FOCUS))


_FOCUS = """(() => {
    const cell = document.activeElement.closest("#cells td");
    const heads = document.querySelector("#cells thead tr").cells;
    return cell && heads[cell.cellIndex].innerText + cell.parentElement.cells[0].innerText;
})()"""
# Each mark that any cell ever gets, in order.
_REMEMBER_MARKS = """(() => {
    window.marks = [];
    new MutationObserver((all) => all.forEach(({ target }) => {
        if (target.hasAttribute("data-changed")) window.marks.push(target.parentElement.id + "/" + target.cellIndex);
    })).observe(document.getElementById("cells"), { subtree: true, attributeFilter: ["data-changed"] });
})()"""


def test_a_change_appears_by_itself_and_is_marked_once(sheet: LivePage, budget: ShownSheet) -> None:
    """With what follows from it, and nothing else; the focus stays, and the line above follows."""
    sheet.ask(f"document.querySelector({cell('B1')!r}).click()")
    sheet.ask(_REMEMBER_MARKS)
    budget.set({"B1": 1300, "A2": "new"})
    sheet.soon(cell("C1"), "2,600")

    assert sheet.text(cell("B1")) == "1,300"
    assert sheet.text("#content") == "1300"
    assert focus(sheet) == "B1"
    assert sheet.ask("window.marks.sort()") == ["row-1/2", "row-1/3", "row-2/1"]
    none_left = "document.querySelectorAll('[data-changed]').length === 0"
    eventually(lambda: sheet.ask(none_left), SOON_S, "the marks end")
    before = sheet.text("#state")
    eventually(lambda: sheet.text("#state") != before, SOON_S, "one more update")
    assert len(sheet.ask("window.marks")) == 3
    assert sheet.text("#entry") == str(budget.entry)


def test_who_wants_no_motion_sees_a_mark_that_stays(sheet: LivePage, budget: ShownSheet) -> None:
    """Until something else changes."""
    sheet.emulate(prefers_reduced_motion="reduce")
    plain = sheet.colour(cell("B1"), "background-color")
    budget.set({"B1": 1300})
    sheet.soon(cell("C1"), "2,600")
    assert sheet.ask("document.getAnimations().length") == 0
    assert sheet.colour(cell("B1"), "background-color") != plain
    budget.set({"A2": "new"})
    sheet.soon(cell("A2"), "new")

    assert sheet.colour(cell("B1"), "background-color") == plain
    assert sheet.ask("[...document.querySelectorAll('[data-changed]')].map(cell => cell.innerText)") == ["new"]


def test_with_the_keyboard_alone(sheet: LivePage) -> None:
    """One stop of Tab for all cells; arrows walk, and over the edge they go on in the next part of the sheet."""
    sheet.press(*[Keys.TAB] * 9)
    eventually(lambda: focus(sheet) == "A1", SOON_S, "the chosen cell has the focus")
    assert sheet.ask("document.querySelectorAll('#cells [tabindex=\"0\"]').length") == 1
    sheet.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert (focus(sheet), sheet.text("#content")) == ("C1", "=B1*2")
    assert sheet.ask("document.getElementById('cell').value") == "C1"
    assert sheet.ask("[...document.querySelectorAll('th[data-chosen]')].map(head => head.innerText)") == ["C", "1"]
    sheet.press(Keys.END)
    assert focus(sheet) == "Z1"
    sheet.press(Keys.ARROW_UP, Keys.HOME, Keys.ARROW_LEFT)
    assert focus(sheet) == "A1"
    sheet.press(Keys.ARROW_RIGHT)
    for _ in range(49):
        sheet.press(Keys.ARROW_DOWN)
    sheet.press(Keys.ARROW_DOWN)
    sheet.soon(".ways span", "Rows 51-100")
    eventually(lambda: focus(sheet) == "B51", SOON_S, "the next cell has the focus")
    sheet.soon("#content", "3")
    sheet.press(Keys.PAGE_UP)
    sheet.soon(".ways span", "Rows 1-50")


def test_headings_stand_still(sheet: LivePage) -> None:
    """Wherever one has scrolled to, the column's letters and the row's number are there."""
    sheet.ask("document.getElementById('sheet').scrollTo(400, 500)")
    top, left, corner, row = sheet.ask("""(() => {
        const box = (what) => document.querySelector(what).getBoundingClientRect();
        return [box("#sheet").top, box("#sheet").left, box("#cells thead th:nth-child(9)").top, box("#row-25 th").left];
    })()""")

    assert sheet.ask("document.getElementById('sheet').scrollTop") == 500
    assert corner - top == pytest.approx(1, abs=0.5)
    assert row - left == pytest.approx(1, abs=0.5)


def test_it_is_a_grid_where_one_can_walk_and_a_table_where_not(page: LivePage, budget: ShownSheet) -> None:
    """Without a program all is there but the walking: cells, formulas, the chosen one, the ways on."""
    page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.driver.get(page.site.url + ADDRESS + "?cell=C1")
        assert page.text(cell("C1")) == "2,400"
        assert page.text("#content") == "=B1*2"
        assert page.ask("document.getElementById('cells').getAttribute('role')") is None
        assert page.ask("document.getElementById('sheet').tabIndex") == 0
        assert page.text("[data-go=down]") == "\N{DOWNWARDS ARROW} rows 51-100"
    finally:
        page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    page.open(ADDRESS + "?cell=C1")
    page.soon("#state", "live,")
    assert page.ask("document.getElementById('cells').getAttribute('role')") == "grid"
    assert page.ask(f"document.querySelector({cell('C1')!r}).title") == "=B1*2"


def test_a_store_that_is_gone_is_said_and_the_cells_are_visibly_old(
    sheet: LivePage, budget: ShownSheet, objects: Path
) -> None:
    """And all is well again by itself."""
    away = objects.with_name("elsewhere")
    shutil.move(objects, away)
    budget.set({"B1": 1300})
    sheet.soon("#trouble", "What you see is of entry 8.")
    assert "stale" in sheet.ask("document.getElementById('sheet').className")
    sheet.soon("#state", "not up to date")
    assert sheet.text(cell("B1")) == "1,200"
    shutil.rmtree(objects, ignore_errors=True)
    shutil.move(away, objects)

    sheet.soon(cell("B1"), "1,300")
    eventually(lambda: sheet.text("#trouble") == "", SOON_S, "the sentence goes")
    assert "stale" not in sheet.ask("document.getElementById('sheet').className")


def test_the_dashboard_goes_and_the_page_says_so(sheet: LivePage) -> None:
    sheet.expected.append("ERR_")  # the browser reports that the connection broke
    assert sheet.site.stop() == 0

    sheet.soon("#state", "connection lost")
    eventually(lambda: sheet.ask("document.getElementById('sheet').classList.contains('stale')"), SOON_S, "it is old")


def test_a_hostile_text_is_only_text(sheet: LivePage, budget: ShownSheet) -> None:
    """When it comes with the page, with an update, and in the line above."""
    title = sheet.ask("document.title")
    budget.set({"B2": HOSTILE})
    sheet.soon(cell("B2"), HOSTILE)
    sheet.ask(f"document.querySelector({cell('B2')!r}).click()")
    assert sheet.text("#content") == HOSTILE
    sheet.open(ADDRESS + "?cell=B2")
    sheet.soon("#content", HOSTILE)

    assert sheet.ask("document.querySelectorAll('main img, main script').length") == 0
    assert sheet.ask("document.title") == title


def test_no_barrier_that_a_program_can_find(page: LivePage, budget: ShownSheet) -> None:
    """axe-core, all its rules, light and dark, wide and narrow; what is wide scrolls by itself."""
    for scheme, width in READERS:
        page.emulate(width=width, prefers_color_scheme=scheme)
        for address in (LIST, ADDRESS, ADDRESS + "?rows=51-60&cols=B-C&cell=B51"):
            page.open(address)
            assert page.barriers() == [], f"{address} {scheme} {width}"
            assert page.ask("document.documentElement.scrollWidth") <= width, address
