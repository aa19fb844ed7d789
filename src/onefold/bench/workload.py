"""What a bench needs of a pipeline: its generator, and the topics that it reads and lands."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from onefold.operate import pipelines, positions
from onefold.processor import loading
from onefold.workloads.shaping import Input


@dataclass(frozen=True)
class Workload:
    """A pipeline that can be measured.

    Attributes:
        inputs: the topics that it reads.
        landed: those of its output topics that become tables.
        generate: (seed, count) to `count` inputs, the same for a seed.
    """

    name: str
    inputs: tuple[str, ...]
    landed: tuple[str, ...]
    generate: Callable[[int, int], Iterator[Input]]


def workload(name: str) -> Workload:
    """Of a pipeline. Raises UserError (exit code 2) where there is no such pipeline or it has no workload, `Refused` where its
    topology does not load.
    """
    (name,) = pipelines.checked([name])
    generate = pipelines.workload(name).generate
    topology = loading.topology_of(name)
    return Workload(name, topology.inputs, tuple(positions.landed_topics(name)), generate)
