"""A real headless Chromium, one per session. Without Chromium the tests are skipped, or fail if a browser is required."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_HOW = "no Chromium here: apt-get install chromium chromium-driver, and its tests run"
_PROGRAMS = ("chromium", "chromedriver")
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # as root Chromium refuses to start with a sandbox; only this machine's own pages are opened
    "--disable-gpu",
    "--disable-dev-shm-usage",  # in a container /dev/shm is small
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--proxy-server=direct://",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Option for machines that must have a browser."""
    parser.addoption("--require-browser", action="store_true", help="fail where Chromium is missing, do not skip")


@pytest.fixture(scope="session")
def chromium(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """The browser, with a new profile."""
    found = [shutil.which(name) for name in _PROGRAMS]
    if not all(found):
        (pytest.fail if request.config.getoption("--require-browser") else pytest.skip)(_HOW)
    driver = start(str(found[0]), str(found[1]), tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


def start(browser: str, driver: str, profile: Path) -> webdriver.Chrome:
    """Start a Chromium that records the console's messages."""
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in (*_ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))
