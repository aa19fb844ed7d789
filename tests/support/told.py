"""Telemetry of services: recorded by a test, or read over HTTP like Prometheus."""

import urllib.error
import urllib.request
from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from onefold.telemetry import Telemetry


class Kept(Telemetry):
    """Recorder of counters' sums, gauges' last values, durations, and the progress of parts."""

    listens = True

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self.gauges: dict[str, float] = {}
        self.durations: list[float] = []
        self.standing: dict[tuple[str, str], tuple[float, str]] = {}
        self.wrong: dict[str, str] = {}

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        self.counted[name] += int(amount)

    def put(self, name: str, value: float, **labels: str) -> None:
        self.gauges[name] = value

    def took(self, name: str, seconds: float, **labels: str) -> None:
        self.durations.append(seconds)

    def faulty(self, domain: str, why: str) -> None:
        self.wrong[domain] = why

    def stands(self, domain: str, part: str, moved_at: float, why: str) -> None:
        self.standing[domain, part] = moved_at, why


def asked(port: int, path: str) -> tuple[int, str]:
    """(status, text); (0, "") without an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def families(text: str) -> dict[str, str]:
    """Type of each metric by name; counters by the names of their samples."""
    found = text_string_to_metric_families(text)
    return {f"{one.name}_total" if one.type == "counter" else one.name: one.type for one in found}


def sums(port: int) -> dict[str, float]:
    """Sum over all labels by name of the sample."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(asked(port, "/metrics")[1]):
        for sample in family.samples:
            found[sample.name] += sample.value  # type: ignore[assignment]  # a Counter also adds fractions
    return dict(found)
