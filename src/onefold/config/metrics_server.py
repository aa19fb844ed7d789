"""The HTTP server of a service's /metrics, for Prometheus, /healthz and /livez.

Services import this module only with a configured port, because the Prometheus client belongs to the services' extras.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Collection, Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from onefold.config import access_token, allowed_hosts
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.telemetry import HEALTHY, METRICS, PAUSED, PROGRESS_AT, Health, Metric, Telemetry

# The range reaches from a transaction of a few records on an idle machine to a batch behind a backlog.
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: The content type of `metrics`: the text format of all Prometheus versions.
METRICS_TYPE = CONTENT_TYPE_PLAIN_0_0_4
# The time-out of a connection without a request, after which the server's thread ends.
REQUEST_S = 10.0


class Exposed(Telemetry):
    """The metrics and the health of a service.

    Args:
        service: As in `telemetry.Metric`.
        domains: The pipelines. Each has its series from the start, at 0, because Prometheus sees no increase in the first
            sample of a series.
        stall_s: As in `Health`.
    """

    listens = True

    def __init__(self, service: str, domains: Iterable[str], stall_s: float) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library forgot its annotation
        self.health = Health(stall_s, time.monotonic)
        self._registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {one.name: self._made(one) for one in METRICS if one.service in ("", service)}
        for one in METRICS:
            if one.name in self._metrics and one.labels == ("domain",) and one.kind != "gauge":
                for domain in domains:
                    self._metrics[one.name].labels(domain)

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """See `Telemetry`."""
        self._series(name, labels).inc(amount)

    def put(self, name: str, value: float, **labels: str) -> None:
        """See `Telemetry`."""
        self._series(name, labels).set(value)

    def withdraw(self, name: str, **labels: str) -> None:
        """Remove a gauge's series, because the present value is unknown."""
        self._metrics[name].remove_by_labels(labels)

    def took(self, name: str, seconds: float, **labels: str) -> None:
        """See `Telemetry`."""
        self._series(name, labels).observe(seconds)

    def stands(self, domain: str, part: str, moved_at: float, why: str) -> None:
        """See `Telemetry`."""
        self.health.stands(domain, part, moved_at, why)

    def faulty(self, domain: str, why: str) -> None:
        """See `Telemetry`."""
        self.health.faulty(domain, why)

    def paused(self, domain: str, why: str) -> None:
        """See `Telemetry`."""
        self.put(PAUSED, bool(why), domain=domain)
        self.health.paused(domain, why)

    def metrics(self) -> bytes:
        """All metrics in Prometheus's text format."""
        self.put(HEALTHY, 0 if self.health.trouble() else 1)
        now = time.time()
        for domain, quiet_s in self.health.quiet_s().items():
            self.put(PROGRESS_AT, now - quiet_s, domain=domain)
        return generate_latest(self._registry)

    def healthz(self) -> tuple[int, str]:
        """The status and the text of /healthz."""
        trouble = self.health.trouble()
        well = "; ".join(["everything moves, or has nothing to do", *self.health.pauses()])
        return (503, trouble) if trouble else (200, well)

    def _series(self, name: str, labels: dict[str, str]) -> Any:
        found = self._metrics[name]
        return found.labels(**labels) if labels else found

    def _made(self, metric: Metric) -> Counter | Gauge | Histogram:
        if metric.kind == "histogram":
            return Histogram(metric.name, metric.meaning, metric.labels, buckets=BUCKETS_S, registry=self._registry)
        kind = Counter if metric.kind == "counter" else Gauge
        return kind(metric.name, metric.meaning, metric.labels, registry=self._registry)


def serve(told: Exposed, host: str, port: int, names: Collection[str] = (), token: str = "") -> str:
    """Serve /metrics, /healthz and /livez on `host`:`port` from a new thread until the process ends. Returns the address.

    Args:
        names: The allowed host names besides localhost (`onefold.config.allowed_hosts`).
        token: The token that a request for metrics needs; "" for none. A health probe needs no token.

    Raises:
        UserError: The address cannot be bound.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if not all(allowed_hosts.allows(asked, names) for asked in self.headers.get_all("Host", [None])):
                self._answer(400, allowed_hosts.refusal("ONEFOLD_METRICS_HOSTS").encode(), "text/plain; charset=utf-8")
            elif path == "/metrics" and not access_token.allows(self.headers.get("Authorization"), token):
                self._answer(401, b"The metrics want the token of ONEFOLD_DASHBOARD_TOKEN as a bearer.\n", "text/plain")
            elif path == "/metrics":
                self._answer(200, told.metrics(), METRICS_TYPE)
            elif path == "/livez":
                self._answer(200, b"this process answers\n", "text/plain; charset=utf-8")
            elif path == "/healthz":
                status, text = told.healthz()
                self._answer(status, f"{text}\n".encode(), "text/plain; charset=utf-8")
            else:
                self._answer(404, b"There are /metrics, /healthz and /livez.\n", "text/plain; charset=utf-8")

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if status == HTTPStatus.UNAUTHORIZED:
                self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as it is called there
            """Write no line: the service's own log lines matter more than a line per request."""

    class Server(ThreadingTCPServer):  # an HTTPServer would resolve this machine's name over the network
        allow_reuse_address = True
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore the error: the client has disconnected."""

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            Code.PORT_TAKEN,
            f"{host}:{port} cannot be listened on for metrics: {reason}",
            "Choose another ONEFOLD_METRICS_PORT or ONEFOLD_METRICS_HOST; 0 is none.",
            USAGE,
        ) from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return f"http://{f'[{host}]' if ':' in host else host}:{server.server_address[1]}"
