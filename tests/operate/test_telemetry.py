"""The list of metrics, what is exposed of it, what is written about it; and what health means."""

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from onefold.config import metrics_server
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.stack.ports import free_ports
from onefold.telemetry import HEALTHY, LAG_S, METRICS, PROGRESS_AT, RECORDS, TRANSACTION_S, Health
from tests.support.clock import Clock
from tests.support.coded import raises
from tests.support.rooms import ROOT
from tests.support.told import asked, families, sums

pytestmark = pytest.mark.promise("documented-metrics")

SERVICES = ("processor", "sink", "worker", "dashboard", "auditor")


def of(service: str) -> dict[str, str]:
    return {one.name: one.kind for one in METRICS if one.service in ("", service)}


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_exposed_is_the_list(service: str) -> None:
    """All of it from the first moment on, and nothing else."""
    port = free_ports(1)[0]
    told = metrics_server.Exposed(service, ["orders"], 60)
    told.stands("orders", "", 0.0, "")
    metrics_server.serve(told, "127.0.0.1", port)

    assert families(asked(port, "/metrics")[1]) == of(service)


def test_the_documents_have_the_list() -> None:
    """docs/monitoring.md, with kind, unit and meaning."""
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(onefold_\w+)` \| (\w+) \| (.*?) \| (.*?) \| (.*?) \|$", text, re.MULTILINE)

    assert rows == [
        (one.name, one.kind, one.unit, ", ".join(f"`{label}`" for label in one.labels), one.meaning) for one in METRICS
    ]


def test_no_metric_has_a_label_of_many_values() -> None:
    """A series for each key would end Prometheus before it ends Kafka."""
    assert {label for one in METRICS for label in one.labels} <= {"domain", "queue", "outcome", "stage"}
    assert len({one.name for one in METRICS}) == len(METRICS)
    assert {one.service for one in METRICS} == {"", *SERVICES}
    assert all(one.name.endswith("_total") == (one.kind == "counter") for one in METRICS)


def queries(panels: list[dict[str, Any]]) -> list[str]:
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def test_the_grafana_dashboard_asks_only_for_what_there_is() -> None:
    """And it is what Grafana takes: panels with a place, each with a query and a unit."""
    board = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time", "__inputs"} <= board.keys()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 5
    for panel in panels:
        assert panel["type"] in ("timeseries", "stat")
        assert {"x", "y", "w", "h"} == panel["gridPos"].keys()
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["title"]
        assert panel["targets"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert all(target["refId"] and target["datasource"]["uid"] == "${DS_PROMETHEUS}" for target in panel["targets"])
    there = {one.name for one in METRICS if one.kind != "histogram"}
    there |= {f"{one.name}{end}" for one in METRICS if one.kind == "histogram" for end in ("_bucket", "_sum", "_count")}
    named = {name for query in queries(panels) for name in re.findall(r"\bonefold_\w+", query)}
    assert named <= there
    assert {LAG_S, HEALTHY, PROGRESS_AT} <= named, "what an alarm is made of is seen"
    labels = {one for query in queries(panels) for one in re.findall(r"(\w+)=~", query)}
    assert labels == {"domain"}


def test_grafana_takes_every_word_of_its_dashboard() -> None:
    """By Grafana's own schema: what it does not know is dropped when it is read, and what has another type is an error."""
    register_default_plugins()
    board = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
    del board["__inputs"]  # what an export asks for when it is imported; the schema is of what comes of it
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    assert list(dropped(board, read)) == []
    board["panels"][0]["fieldConfig"]["defaults"]["units"] = "s"
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    assert list(dropped(board, read)) == ["/panels/0/fieldConfig/defaults/units"]


def dropped(written: Any, read: Any, at: str = "") -> Iterator[str]:
    """Where something that was written is not there any more, or is something else."""
    if isinstance(written, dict) and isinstance(read, dict):
        for name, part in written.items():
            yield from dropped(part, read.get(name), f"{at}/{name}")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for number, (part, other) in enumerate(zip(written, read, strict=True)):
            yield from dropped(part, other, f"{at}/{number}")
    elif written != read:
        yield at


def test_what_is_told_is_there() -> None:
    told = metrics_server.Exposed("processor", ["orders", "mails"], 60)
    port = free_ports(1)[0]
    metrics_server.serve(told, "127.0.0.1", port)
    assert sums(port)[RECORDS] == 0
    told.add(RECORDS, 5, domain="orders")
    told.add(RECORDS, 2, domain="mails")
    told.took(TRANSACTION_S, 0.25, domain="orders")

    found = sums(port)
    assert (found[RECORDS], found[f"{TRANSACTION_S}_sum"], found[f"{TRANSACTION_S}_count"]) == (7, 0.25, 1)
    assert asked(port, "/elsewhere")[0] == 404
    with pytest.raises(KeyError):
        told.add("onefold_made_up_total", domain="orders")


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with raises(UserError, Code.PORT_TAKEN, str(port)) as error:
            metrics_server.serve(metrics_server.Exposed("sink", [], 60), "127.0.0.1", port)
    assert error.value.exit_code == USAGE


def test_health_is_progress_and_not_an_answer() -> None:
    """Each part has to move. One that tells nothing any more does not, and neither does a service that never began."""
    clock = Clock()
    health = Health(60, clock)
    clock.now += 60
    assert health.trouble() == ""
    clock.now += 1
    assert health.trouble() == "no progress for 61 s: it has not begun"

    health.stands("orders", "", clock.now, "")
    health.stands("mails", "mails.jobs", clock.now, "the server is away")
    assert health.trouble() == ""
    clock.now += 40
    health.stands("orders", "", clock.now, "")
    clock.now += 21
    assert health.trouble() == "mails mails.jobs: no progress for 61 s: the server is away"
    assert health.quiet_s() == {"orders": 21, "mails": 61}
    clock.now += 40
    assert health.trouble().startswith("orders: no progress for 61 s; mails mails.jobs: ")
    health.stands("orders", "", clock.now, "")
    health.stands("mails", "mails.jobs", clock.now, "")
    assert health.trouble() == ""


def test_health_is_a_status_and_a_metric() -> None:
    told = metrics_server.Exposed("sink", ["orders"], 60)
    port = free_ports(1)[0]
    metrics_server.serve(told, "127.0.0.1", port)
    assert asked(port, "/healthz") == (200, "everything moves, or has nothing to do\n")
    told.stands("orders", "", -1e6, "3 offsets wait")
    status, text = asked(port, "/healthz")
    assert (status, text.endswith(" s: 3 offsets wait\n")) == (503, True)
    found = sums(port)
    assert found[HEALTHY] == 0
    assert found[PROGRESS_AT] > 0
