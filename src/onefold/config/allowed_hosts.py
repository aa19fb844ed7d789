"""Under which names a service answers over HTTP, so that no page of another site reads it through a browser.

A site can give its own name this machine's address (DNS rebinding). The browser then sends that name in the header Host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

LOOPBACK = "localhost"
# A name, or with *. in front every name below it; no port.
_NAME = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_HEADER = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:\d*)?", re.IGNORECASE)


def names(text: str) -> list[str]:
    """The names in a setting, which commas separate. Raises ValueError for what is no name of a host."""
    found = [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in found:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no name of a host; write names as board.example or *.example, without a port"
            )
    return found


def allows(header: str | None, listed: Collection[str]) -> bool:
    """Whether a request with this Host may be answered: `localhost`, an address, or one of the listed names.

    An address is always allowed: a site that was given this machine's address still has its own name in the header.

    Args:
        header: of the request; None when there is none: no browser sends such a request, and probes do (HTTP/1.0, HAProxy).
        listed: as `names` returns them.
    """
    if header is None:
        return True
    parts = _HEADER.fullmatch(header)
    if parts is None:
        return False
    host = parts[1].lower().rstrip(".")
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host == LOOPBACK or any(
            host.endswith(name[1:]) if name.startswith("*.") else host == name for name in listed
        )
    return True


def refusal(setting: str) -> str:
    """The text of the answer to another name."""
    return f"This service does not answer under this name. Add the name to {setting} and start the service again.\n"
