"""What services tell: kept by a test itself, or asked over HTTP as Prometheus does."""

import urllib.error
import urllib.request
from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from onefold.telemetry import Telemetry


class Kept(Telemetry):
    """Keeps sums of counters, the last value of gauges, durations, and how parts stand."""

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
    """(status, text); (0, "") while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def families(text: str) -> dict[str, str]:
    """Of what is exposed, by name what kind it is; a counter's as its samples are called."""
    found = text_string_to_metric_families(text)
    return {f"{one.name}_total" if one.type == "counter" else one.name: one.type for one in found}


def sums(port: int) -> dict[str, float]:
    """By name of a sample the sum over all its labels."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(asked(port, "/metrics")[1]):
        for sample in family.samples:
            found[sample.name] += sample.value  # type: ignore[assignment]  # a Counter also counts what is no whole number
    return dict(found)
