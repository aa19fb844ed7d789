"""The token for read access to the dashboard and to metrics, compared in constant time."""

from __future__ import annotations

import hmac
from hashlib import sha256

#: The minimum length, against guessing.
CHARACTERS_MIN = 16
_SCHEME = "bearer "


def is_token(given: str, token: str) -> bool:
    """Whether `given` is the token."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def allows(authorization: str | None, token: str) -> bool:
    """Whether the service may answer a request with this header Authorization; always for the token "", of an open service."""
    given = authorization or ""
    return not token or (given.lower().startswith(_SCHEME) and is_token(given[len(_SCHEME) :].strip(), token))


def cookie(token: str) -> str:
    """The cookie's value for a browser, from which the token cannot be computed. A new token invalidates the cookie."""
    return hmac.new(token.encode(), b"onefold dashboard", sha256).hexdigest()
