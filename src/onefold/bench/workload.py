"""A pipeline as a benchmark uses it: the generator, and the topics that the pipeline reads and writes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from onefold.operate import offsets, pipelines
from onefold.processor import loading
from onefold.workloads.shaping import Input


@dataclass(frozen=True)
class MeasuredPipeline:
    """A pipeline with a generator.

    Attributes:
        inputs: input topics.
        landed: output topics that the sink writes to tables.
        generate: (seed, count) to `count` inputs, reproducible by the seed.
    """

    name: str
    inputs: tuple[str, ...]
    landed: tuple[str, ...]
    generate: Callable[[int, int], Iterator[Input]]


def workload(name: str) -> MeasuredPipeline:
    """Find a pipeline with its generator.

    Raises UserError (exit code 2) if there is no such pipeline or no generator, InvalidDeclaration if the topology does not
    load.
    """
    (name,) = pipelines.checked([name])
    generate = pipelines.workload(name).generate
    topology = loading.topology_of(name)
    return MeasuredPipeline(name, topology.inputs, tuple(offsets.landed_topics(name)), generate)
