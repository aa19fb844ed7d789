"""Choice of the replica that a fault hits: the publisher, whose failure costs most."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.operate import pipelines
from onefold.operate.replicas import publisher_of
from onefold.waiting import until

# The publisher appends a note after each transaction.
KNOWN_WITHIN_S = 10
ASK_EVERY_S = 1.0

# Returns the name of the publishing replica; None: not known.
Publisher = Callable[[], str | None]
T = TypeVar("T")


def publisher_in(domain: str, settings: Settings) -> Publisher | None:
    """Return a function that names the publishing replica. None: the pipeline has no replicas, by the settings of the stack."""
    if settings.replicas_of(pipelines.found()[domain]) == 1:
        return None
    return partial(publisher_of, domain, settings)


def known(found: Callable[[], T | None]) -> T:
    """Wait until `found` knows the publishing replica, because a fault in another replica would show nothing.

    Raises UserError if no publisher is known in time.
    """
    if (one := until(found, KNOWN_WITHIN_S, ASK_EVERY_S)) is not None:
        return one
    raise UserError(
        Code.FAULT_IMPOSSIBLE,
        f"no replica has published anything within {KNOWN_WITHIN_S} s",
        "Look with: onefold status",
    )
