"""Pages that a pipeline brings with code: the example in examples/sales, and views that fail."""

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.cli import starter
from onefold.jobs.objects.local import LocalStore
from onefold.pipelines import PROJECT_FILE, PROJECT_VARIABLE
from tests.support.examples import EXAMPLES
from tests.support.floor import Floor
from tests.support.migrated import migrate_all
from tests.support.site import READERS, SOON_S, LivePage, Site
from tests.support.waiting import eventually

VIEW = "/pipelines/sales/view/"
SHOP = f"{VIEW}Bern%20%3Cb%3E"
_SOLD = (
    "INSERT INTO sales.minutes VALUES ('Bern <b>', date_trunc('minute', now()) - %s * interval '1 minute', 3, 250, 83.33,"
    " 'sales.minutes', 0, %s)"
)
#: What the second pipeline of the project has for a view, by the end of its address.
_FAULTY = '''"""A view that fails in every way."""
from pathlib import Path
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from onefold.view import View

def routes(page):
    async def broken(request):
        return page.frame("nothing.html", title="x")

    async def refused(request):
        async with page.snapshot() as connection:
            await connection.execute("DELETE FROM sales.minutes")

    async def live(request):
        async def read(before):
            return 1 / 0

        return page.live("a", read, lambda value, trouble: {"part": trouble})

    def stored(request):
        objects = page.objects()
        return PlainTextResponse(f"{objects.get('letters/1').decode()} {objects.size('letters/2')} {hasattr(objects, 'put')}")

    return [Route("/broken", broken), Route("/refused", refused), Route("/live", live), Route("/stored", stored)]

VIEW = View(routes, Path(__file__).parent)
'''


@pytest.fixture
def project(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example beside what `onefold new` writes, whose view fails."""
    folder = tmp_path / "project"
    starter.write("orders", folder)
    written = (folder / PROJECT_FILE).read_text(encoding="utf-8").replace("packages = []\n", "")
    written = written.replace('workload = "orders_workload"\n', 'workload = "orders_workload"\nview = "faulty:VIEW"\n')
    shutil.copytree(EXAMPLES / "sales", folder, dirs_exist_ok=True)
    example = (folder / PROJECT_FILE).read_text(encoding="utf-8").replace("[tool.onefold]\npackages = []\n", "")
    (folder / PROJECT_FILE).write_text(f"{written}\n{example}", encoding="utf-8")
    (folder / "faulty.py").write_text(_FAULTY, encoding="utf-8")
    monkeypatch.setenv(PROJECT_VARIABLE, str(folder))
    return folder


@pytest.fixture
def floor(project: Path, database: str) -> Iterator[Floor]:
    """A database with the tables of both pipelines, and some minutes of a shop."""
    migrate_all(database, project / "sql")
    made = Floor(database)
    made.connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA sales, orders TO onefold_reader")
    made.connection.execute("GRANT USAGE ON SCHEMA sales, orders TO onefold_reader")
    for ago in (1, 2):
        made.connection.execute(_SOLD, (ago, ago))
    yield made
    made.close()


def test_a_pipeline_of_ones_own_has_panels_and_a_live_page(page: LivePage, floor: Floor) -> None:
    """As `examples/sales` declares them; anybody can read them, and a name is only text."""
    floor.connection.execute(
        'INSERT INTO orders.totals (customer, orders, placed_cents, paid_cents, changes, topic, partition, "offset")'
        " VALUES ('Ada', 2, 1000, 250, 3, 'orders.totals', 0, 1)"
    )
    for scheme, width in READERS:
        page.emulate(width=width, prefers_color_scheme=scheme)
        page.open("/pipelines/orders")
        page.soon("#panel-1", "Customers with the largest orders")
        assert "12.50" in page.text("#panel-1 table")
        page.open("/pipelines/sales")
        page.soon("#panel-2", "Bern <b>")
        assert page.text("#panel-2 td.number") == "5.00"
        assert page.barriers() == []
        page.open(VIEW)
        assert page.text("nav a[aria-current]") == "Sales"
        page.open(SHOP)
        page.soon("#state", "live,")
        assert page.text("h1").endswith("Bern <b>")
        assert page.ask("document.querySelectorAll('#minutes tbody tr').length") == 2
        assert page.ask("document.documentElement.scrollWidth") <= width
        assert page.barriers() == []
    floor.connection.execute(_SOLD, (3, 3))
    rows = "document.querySelectorAll('#minutes tbody tr').length"
    eventually(lambda: page.ask(rows) == 3, SOON_S, "a new minute appears by itself")
    floor.connection.execute("ALTER TABLE sales.minutes RENAME cents TO rappen")
    page.soon("#state", "not up to date")
    page.soon("#minutes", 'The query does not work: column "cents" does not exist')
    assert page.ask(rows) == 3, "what was read last stays"


def test_a_view_that_fails_is_the_error_of_its_page_alone(site: Site, floor: Floor, project: Path) -> None:
    """One sentence, and the traceback in the log; the headline and every other page are as before."""
    before = site.get("/")
    status, text = site.get("/pipelines/orders/view/broken")
    assert (status, "This view failed: TemplateNotFound" in text) == (500, True)
    assert "Traceback" in site.said()
    status, text = site.get("/pipelines/orders/view/refused")
    assert (status, "The query does not work: cannot execute DELETE in a read-only transaction" in text) == (503, True)
    with urllib.request.urlopen(f"{site.url}/pipelines/orders/view/live", timeout=30) as answer:
        sent = next(json.loads(line[6:]) for line in answer if line.startswith(b"data: {"))
    assert sent["trouble"] == "This view failed: ZeroDivisionError: division by zero."
    assert sent["parts"] == {"part": sent["trouble"]}
    for path in ("/pipelines/orders/view/nothing", "/pipelines/runner/view/", "/pipelines/nothing/view/"):
        assert site.get(path)[0] == 404
    assert site.get(SHOP)[0] == site.get("/pipelines/orders")[0] == 200
    assert [line for line in site.get("/")[1].splitlines() if "<h1" in line] == [
        line for line in before[1].splitlines() if "<h1" in line
    ]


def test_a_view_reads_the_objects_of_jobs_and_cannot_write_them(
    site: Site, floor: Floor, project: Path, tmp_path: Path
) -> None:
    """The store that sheets reads, for the view of any pipeline."""
    store = LocalStore(tmp_path / "objects")
    store.put("letters/1", b"hello")
    store.put("letters/2", b"again")
    assert site.get("/pipelines/orders/view/stored") == (200, "hello 5 False")


def test_a_view_that_cannot_be_imported_is_one_sentence_until_it_can(site: Site, floor: Floor, project: Path) -> None:
    (project / "faulty.py").write_text("import nowhere", encoding="utf-8")
    status, text = site.get("/pipelines/orders/view/broken")
    assert status == 500
    assert "it imports nowhere, which is not installed" in text
    (project / "faulty.py").write_text(_FAULTY, encoding="utf-8")
    assert "TemplateNotFound" in site.get("/pipelines/orders/view/broken")[1]
