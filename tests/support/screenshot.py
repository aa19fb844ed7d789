"""Takes the screenshot for the documents: the page of a running stack, under load.

    onefold up
    python -m tests.support.screenshot docs/dashboard.png --rate 5000 --seconds 120

Verifies every pipeline, feeds seeded trades at that rate and reports their sums, and takes the screenshot while messages still
come. With --kill, a processor and the sink are killed in the first quarter. Add ONEFOLD_FAIL_STATE_PCT=1 and its siblings to `up`
for more.
"""

import argparse
import itertools
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import psycopg

from onefold.cli.main import run
from onefold.operate import pipelines, producing, state
from onefold.operate.settings import Settings, load
from onefold.proof.workloads.trade_feed import Feed
from tests.support.browser import start
from tests.support.floor import report

WIDTH, HEIGHT = 1280, 1400
KILLED = {0.2: "processor-trades-1", 0.25: "sink-1"}
MOST = 50_000_000
LEFT_S = 5  # of the load, for the screenshot


def main() -> None:
    """Parses, feeds, and takes the screenshot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", action="store_true")
    asked = parser.parse_args()
    settings = load()
    for name in pipelines.domains():
        run(["verify", name])
    with tempfile.TemporaryDirectory() as profile:
        driver = start(shutil.which("chromium") or "", shutil.which("chromedriver") or "", Path(profile))
        try:
            size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            driver.get(settings.running["dashboard"])
            feeding = fed(settings, asked.seed, asked.rate, asked.seconds, KILLED if asked.kill else {})
            for _ in itertools.takewhile(lambda passed: passed < asked.seconds - LEFT_S, feeding):
                pass
            threading.Thread(target=list, args=(feeding,)).start()  # the rest comes while the screenshot is taken
            height = driver.execute_script("return document.documentElement.scrollHeight")
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size | {"height": height})
            driver.save_screenshot(str(asked.file))
        finally:
            driver.quit()


def fed(
    settings: Settings, seed: int, rate: int, seconds: int, killed: Mapping[float, str] = MappingProxyType({})
) -> Iterator[float]:
    """Feeds for so long, reports the sums once a second, and kills these services, by the share of the time that has passed
    then. Yields the seconds passed.
    """
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
                os.kill(state.read_running(settings.home)["services"][kills.pop(share)]["pid"], signal.SIGKILL)
            if passed > seconds:
                break
            yield passed
        report(connection, feed)


if __name__ == "__main__":
    main()
