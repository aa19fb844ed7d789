"""Find servers that the running stack did not start: no command writes load into a user's cluster without a request."""

from __future__ import annotations

from onefold.config import redaction
from onefold.config.settings import Settings


def servers(settings: Settings) -> list[str]:
    """List the Kafka and the PostgreSQL that the running stack did not start, with addresses, without passwords."""
    own = settings.running.get("services", {})
    found = []
    for service, name, product, shown in (
        ("kafka", "bootstrap_servers", "Kafka", redaction.address),
        ("postgres", "postgres_dsn", "PostgreSQL", redaction.dsn),
    ):
        of_stack = settings.running.get(name)
        address = getattr(settings, name) or of_stack
        if address and not (service in own and address == of_stack):
            found.append(f"{product} at {shown(address)}")
    return found
