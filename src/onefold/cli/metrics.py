"""The metrics server of a service: /metrics and /healthz, if a port is set."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from onefold.config import allowed_hosts
from onefold.config.settings import Settings
from onefold.telemetry import SILENT, Telemetry

log = structlog.get_logger()


def of(service: str, domains: Iterable[str], settings: Settings) -> Telemetry:
    """Start the metrics server, and return the service's telemetry; `SILENT` without a port.

    Raises:
        UserError: the address is unusable (exit code 2).
    """
    if not settings.metrics_port:
        return SILENT
    from onefold.config import metrics_server  # imports a web server, which a service without a port does not need

    told = metrics_server.Exposed(service, domains, settings.stall_s)
    names = allowed_hosts.names(settings.metrics_hosts)
    token = settings.dashboard_token or ""
    at = metrics_server.serve(told, settings.metrics_host, settings.metrics_port, names, token)
    log.info("metrics and health", address=at)
    return told
