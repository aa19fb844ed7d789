"""The dashboard as a process, used over HTTP like a browser, and the live page in a browser."""

import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains

from onefold.dashboard.reader import SNAPSHOT_S
from tests.support import forked
from tests.support.forks import Process
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
#: Windows and preferences of readers: light and wide, or dark and narrow.
READERS = (("light", 1280), ("dark", 320))
_AXE = ROOT / "tests" / "vendor" / "axe.min.js"
# Updates come every second; a busy machine may need some seconds.
SOON_S = 20
# Pages without a stream have no state element.
_ALIVE = "(document.getElementById('state')?.dataset.state ?? 'live') !== 'waiting'"


class Site:
    """`onefold dashboard` on a free port."""

    def __init__(
        self, home: Path, environment: dict[str, str], *arguments: str, snapshot_s: float = SNAPSHOT_S
    ) -> None:
        self._log = home / "dashboard.out"
        self._log.touch()
        words = ["dashboard", "--port", "0", *arguments]
        asked = {**os.environ, **environment, "ONEFOLD_HOME": str(home)}
        self.process = Process(forked.dashboard, {"words": words, "snapshot_s": snapshot_s}, self._log, asked, home)
        self.url = eventually(self._address, 30, "the dashboard says where it is")
        eventually(self._answers, 30, "the dashboard answers")

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """(status, text) of an address."""
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def said(self) -> str:
        """Output so far."""
        return self._log.read_text(encoding="utf-8")

    def stop(self) -> int:
        """Stop with SIGTERM; returns the exit code."""
        self.process.terminate()
        return self.process.wait(20)

    def _address(self) -> str:
        assert self.process.poll() is None, self.said()
        found = re.search(r"http://\S+", self.said())
        return found.group() if found else ""

    def _answers(self) -> bool:
        try:
            return self.get("/static/icon.svg")[0] == 200
        except OSError:
            return False


class LivePage:
    """The page in a browser. Tests use scripts, because updates replace elements during a look.

    expected: words of console errors that a test causes.
    """

    def __init__(self, driver: webdriver.Chrome, site: Site) -> None:
        self.driver = driver
        self.site = site
        self.expected: list[str] = []

    def open(self, path: str = "/") -> None:
        """Open a page, and wait for the first update, or the message that there is none."""
        self.driver.get(self.site.url + path)
        eventually(lambda: self.ask(_ALIVE), SOON_S, "the page is alive")

    def ask(self, expression: str) -> Any:
        """Value of a JavaScript expression."""
        return self.driver.execute_script(f"return {expression}")

    def text(self, selector: str) -> str:
        """Visible text of the first matching element, "" without one."""
        return str(self.ask(f"document.querySelector({selector!r})?.innerText ?? ''"))

    def rows(self) -> list[str]:
        """Names of the rows of the level."""
        found: list[str] = self.ask("[...document.querySelectorAll('.parts tbody th')].map(cell => cell.innerText)")
        return found

    def soon(self, selector: str, wanted: str) -> None:
        """Wait until the element shows the text."""
        try:
            eventually(lambda: wanted in self.text(selector), SOON_S, f"{wanted!r} in {selector}")
        except AssertionError as error:
            raise AssertionError(f"{error}; the page says: {self.text('body')}") from None

    def barriers(self) -> list[str]:
        """Violations found by axe-core with all rules: the rule, and the element."""
        self.driver.execute_script(_AXE.read_text(encoding="utf-8"))
        found = self.driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
        assert found["passes"], "it has looked"
        return [f"{one['id']}: {node['html']}" for one in found["violations"] for node in one["nodes"]]

    def colour(self, selector: str, kind: str = "color") -> str:
        """A computed colour."""
        return str(self.ask(f"getComputedStyle(document.querySelector({selector!r})).getPropertyValue({kind!r})"))

    def press(self, *keys: str) -> None:
        """Press keys in turn, in the focused element."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def emulate(self, width: int = 1280, height: int = 900, **media: str) -> None:
        """Set the window size, and preferences such as prefers_color_scheme="dark"."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
