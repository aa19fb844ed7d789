"""A database with tables and a trading floor, the dashboard over it, and a browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from onefold.dashboard import reader
from tests.support.floor import Floor
from tests.support.migrated import migrate_all
from tests.support.site import ROOT, LivePage, Site

# So a busy browser says, at line 0 of the page, that it has shown the next one without fading into it.
_NOT_FADED = "Transition was aborted because of invalid state"


@pytest.fixture
def floor(database: str) -> Iterator[Floor]:
    """A floor that has landed nothing."""
    migrate_all(database, ROOT / "sql")
    made = Floor(database)
    yield made
    made.close()


@pytest.fixture
def snapshot_s() -> float:
    """How long a snapshot of the database may take."""
    return reader.SNAPSHOT_S


@pytest.fixture
def site(floor: Floor, database: str, bootstrap_servers: str, tmp_path: Path, snapshot_s: float) -> Iterator[Site]:
    """The dashboard over that database."""
    settings = {"ONEFOLD_POSTGRES_DSN": database, "ONEFOLD_BOOTSTRAP_SERVERS": bootstrap_servers}
    made = Site(tmp_path, settings, snapshot_s=snapshot_s)
    yield made
    if made.process.poll() is None:
        made.stop()


@pytest.fixture
def page(chromium: webdriver.Chrome, site: Site) -> Iterator[LivePage]:
    """The page in a window of its own settings. At the end its console must be without errors."""
    made = LivePage(chromium, site)
    made.emulate()
    chromium.get_log("browser")  # type: ignore[no-untyped-call]  # the library forgot its annotation; of the test before
    yield made
    logged = chromium.get_log("browser")  # type: ignore[no-untyped-call]  # the library forgot its annotation
    errors = [line["message"] for line in logged if line["level"] == "SEVERE"]
    chromium.get("about:blank")
    expected = [*made.expected, _NOT_FADED]
    assert [error for error in errors if not any(words in error for words in expected)] == []
