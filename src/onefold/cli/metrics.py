"""Where a service answers for itself: /metrics and /healthz, if a port is set."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from onefold.config import allowed_hosts
from onefold.config.settings import Settings
from onefold.telemetry import SILENT, Telemetry

log = structlog.get_logger()


def of(service: str, domains: Iterable[str], settings: Settings) -> Telemetry:
    """What the service is to tell. Raises UserError (exit code 2) when the address cannot be had."""
    if not settings.metrics_port:
        return SILENT
    from onefold.config import metrics_server  # a web server, which a service that nobody asks does not need

    told = metrics_server.Exposed(service, domains, settings.stall_s)
    names = allowed_hosts.names(settings.metrics_hosts)
    token = settings.dashboard_token or ""
    at = metrics_server.serve(told, settings.metrics_host, settings.metrics_port, names, token)
    log.info("metrics and health", address=at)
    return told
