"""Take the screenshot for the documents: the page of a running stack, after load.

    onefold up
    python -m tests.support.screenshot docs/dashboard.png --rate 5000 --seconds 120

Feeds every pipeline, and then seeded trades at that rate, with reports of their sums. After all rows are in PostgreSQL,
verifies every pipeline, and takes the screenshot. With --kill, a processor and the sink are killed in the first quarter.
Add ONEFOLD_FAIL_STATE_PCT=1 and the similar settings to `up` for further failures.
"""

import argparse
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import psycopg
from selenium.webdriver import Chrome

from onefold.cli.main import run
from onefold.config import stack_state
from onefold.config.settings import Settings, load
from onefold.operate import pipelines, producing
from onefold.workloads.trade_feed import Feed
from tests.support.browser import start
from tests.support.drained import is_drained
from tests.support.floor import report
from tests.support.waiting import eventually

WIDTH, HEIGHT = 1280, 1400
KILLED = {0.2: "processor-trades-1", 0.25: "sink-1"}
MOST = 50_000_000
DRAINED_S = 900
SHOWN_S = 60
UNKNOWN = "\u2014"  # the page's mark for a number that is not counted yet
#: Numbers of records for the other pipelines.
FED = {
    "averages.left": 2_000,
    "averages.right": 2_000,
    "bank.accounts": 200,
    "bank.transfers": 5_000,
    "campaigns.sends": 2_000,
    "runner.updates": 5_000,
    "sheets.edits": 2_000,
}


def main() -> None:
    """Parse the arguments, feed, and take the screenshot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", action="store_true")
    asked = parser.parse_args()
    settings = load()
    for topic, count in FED.items():
        run(["produce", topic, "--count", str(count), "--seed", str(asked.seed)])
    eventually(is_drained, DRAINED_S, "a warm sink, so that the latencies are those of the load")
    for _ in fed(settings, asked.seed, asked.rate, asked.seconds, KILLED if asked.kill else {}):
        pass
    eventually(is_drained, DRAINED_S, "all rows are in PostgreSQL")
    for name in pipelines.domains():
        run(["verify", name])
    with tempfile.TemporaryDirectory() as profile:
        driver = start(shutil.which("chromium") or "", shutil.which("chromedriver") or "", Path(profile))
        try:
            size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            driver.get(settings.running["dashboard"])
            eventually(
                lambda: "valid" in shown(driver) and UNKNOWN not in shown(driver), SHOWN_S, "the page has all numbers"
            )
            height = driver.execute_script("return document.documentElement.scrollHeight")
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size | {"height": height})
            driver.save_screenshot(str(asked.file))
        finally:
            driver.quit()


def shown(driver: Chrome) -> str:
    """Text of the page."""
    return driver.find_element("tag name", "body").text


def fed(
    settings: Settings, seed: int, rate: int, seconds: int, killed: Mapping[float, str] = MappingProxyType({})
) -> Iterator[float]:
    """Feed trades for `seconds`, report the sums once a second, and kill services at given shares of the time. Yields the
    seconds passed."""
    feed = Feed(seed, MOST, now=time.time)
    messages = ((made.topic, made.key, made.value) for made in feed)
    began, reported, kills = time.monotonic(), 0.0, dict(killed)
    with psycopg.connect(settings.postgres(), autocommit=True) as connection:
        for _ in producing.produce(messages, settings.client(), rate):
            passed = time.monotonic() - began
            if passed - reported > 1:
                reported = passed
                report(connection, feed)
            for share in [share for share in kills if passed > share * seconds]:
                os.kill(stack_state.read_running(settings.home)["services"][kills.pop(share)]["pid"], signal.SIGKILL)
            if passed > seconds:
                break
            yield passed
        report(connection, feed)


if __name__ == "__main__":
    main()
