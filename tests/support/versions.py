"""Other versions of programs: the pipelines of the runner and of the bank with changed rules."""

from dataclasses import replace
from threading import Event as Never
from typing import Any

import msgspec

from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Event
from onefold.processor.loading import topology_of

#: Value at which the version with a bug fails.
POISON_METERS = 666

#: Factor of each step in the other version.
TIMES = 10


def longer(state: Any, event: Event) -> Any:
    """The runner's rule, with each step ten times as long."""
    update = msgspec.structs.replace(event.value, distance_meters=TIMES * event.value.distance_meters)
    return topology_of("runner").handle(state, event._replace(value=update))


def other_rule(topology: Topology) -> Topology:
    """The pipeline in the other version."""
    return replace(topology, handle=longer)


def fails(state: Any, event: Event) -> Any:
    """The runner's rule with a bug."""
    if event.value.distance_meters == POISON_METERS:
        raise ValueError("not that far")
    return topology_of("runner").handle(state, event)


def with_bug(topology: Topology) -> Topology:
    """The pipeline in a version with a bug in the handler."""
    return replace(topology, handle=fails)


def hangs(state: Any, event: Event) -> Any:
    """The runner's rule, which hangs at one record."""
    if event.value.distance_meters == POISON_METERS:
        Never().wait()
    return topology_of("runner").handle(state, event)


def with_hang(topology: Topology) -> Topology:
    """The pipeline in a version whose handler hangs."""
    return replace(topology, handle=hangs)


def keeps(state: Any, event: Event) -> Any:
    """The bank's rule without deposits, so that withdrawn money is lost."""
    account, outputs = topology_of("bank").handle(state, event)
    return account, [output for output in outputs if output[0] != "bank.deposits"]


def that_keeps(topology: Topology) -> Topology:
    """The pipeline in a version that loses money between accounts."""
    return replace(topology, handle=keeps)
