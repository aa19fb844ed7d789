"""Which of a pipeline's replicas a fault hits: the one that publishes, for it costs more than any other."""

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

# Returns the name of the replica that publishes; None: no replica is known to publish.
Publisher = Callable[[], str | None]
T = TypeVar("T")


def publisher_in(domain: str, settings: Settings) -> Publisher | None:
    """Who says which replica of the pipeline publishes. None: it has no replicas, by the settings of the stack."""
    if settings.replicas_of(pipelines.found()[domain]) == 1:
        return None
    return partial(publisher_of, domain, settings)


def known(found: Callable[[], T | None]) -> T:
    """What was found of the replica that publishes, as soon as it is known: to hit another one would show nothing. Raises
    UserError when it is not known in time.
    """
    if (one := until(found, KNOWN_WITHIN_S, ASK_EVERY_S)) is not None:
        return one
    raise UserError(
        Code.FAULT_IMPOSSIBLE,
        f"no replica has published anything within {KNOWN_WITHIN_S} s",
        "Look with: onefold status",
    )
