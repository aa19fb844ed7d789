"""The token of the page and of metrics: who sends it may read. Compared in constant time."""

from __future__ import annotations

import hmac
from hashlib import sha256

#: A shorter one could be guessed.
CHARACTERS_MIN = 16
_SCHEME = "bearer "


def is_token(given: str, token: str) -> bool:
    """Whether somebody has given the token."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def allows(authorization: str | None, token: str) -> bool:
    """Whether a request with this header Authorization may be answered. "": a service without a token answers everybody."""
    given = authorization or ""
    return not token or (given.lower().startswith(_SCHEME) and is_token(given[len(_SCHEME) :].strip(), token))


def cookie(token: str) -> str:
    """What a browser keeps in the place of the token, which does not follow from it. It is void when the token changes."""
    return hmac.new(token.encode(), b"onefold dashboard", sha256).hexdigest()
