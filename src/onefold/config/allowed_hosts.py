"""The host names under which a service answers over HTTP: protection against DNS rebinding.

A foreign site can point its own name at this machine's address and read the service through a visitor's browser. The
browser then sends the site's name in the header Host, and the service refuses the request.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

LOOPBACK = "localhost"
# A name without a port. The prefix *. stands for every subdomain.
_NAME = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_HEADER = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:\d*)?", re.IGNORECASE)


def names(text: str) -> list[str]:
    """Split a comma-separated setting into host names. Raises ValueError for an invalid host name."""
    found = [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in found:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no name of a host; write names as board.example or *.example, without a port"
            )
    return found


def allows(header: str | None, listed: Collection[str]) -> bool:
    """Whether the service may answer a request with this Host: `localhost`, an IP address, or a listed name.

    An IP address is always allowed, because a request after DNS rebinding carries the name of the foreign site.

    Args:
        header: The request's Host; None, also allowed, without the header. Browsers always send Host; probes may not
            (HTTP/1.0, HAProxy).
        listed: The result of `names`.
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
    """The response text for a refused host name. `setting` is the variable of the allowed names."""
    return f"This service does not answer under this name. Add the name to {setting} and start the service again.\n"
