"""Other versions of a program: the pipelines of the runner and of the bank with another rule."""

from dataclasses import replace
from threading import Event as Never
from typing import Any

import msgspec

from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Event
from onefold.processor.loading import topology_of

#: What a version with a bug fails at.
POISON_METERS = 666

#: In the other version each step is so much longer.
TIMES = 10


def longer(state: Any, event: Event) -> Any:
    """The same run, counted as if each step were ten times as long."""
    update = msgspec.structs.replace(event.value, distance_meters=TIMES * event.value.distance_meters)
    return topology_of("runner").handle(state, event._replace(value=update))


def other_rule(topology: Topology) -> Topology:
    """The pipeline as the other version has it."""
    return replace(topology, handle=longer)


def fails(state: Any, event: Event) -> Any:
    """The runner's rule, but for a bug."""
    if event.value.distance_meters == POISON_METERS:
        raise ValueError("not that far")
    return topology_of("runner").handle(state, event)


def with_bug(topology: Topology) -> Topology:
    """The pipeline as a version has it whose handler has a bug."""
    return replace(topology, handle=fails)


def hangs(state: Any, event: Event) -> Any:
    """The runner's rule, which never comes to an end at one record."""
    if event.value.distance_meters == POISON_METERS:
        Never().wait()
    return topology_of("runner").handle(state, event)


def with_hang(topology: Topology) -> Topology:
    """The pipeline as a version has it whose handler hangs."""
    return replace(topology, handle=hangs)


def keeps(state: Any, event: Event) -> Any:
    """The bank's rule, but what is withdrawn goes nowhere."""
    account, outputs = topology_of("bank").handle(state, event)
    return account, [output for output in outputs if output[0] != "bank.deposits"]


def that_keeps(topology: Topology) -> Topology:
    """The pipeline as a version has it that loses money on its way."""
    return replace(topology, handle=keeps)
