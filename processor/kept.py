"""Where the states of a process are kept: what its settings say, for each of its tasks."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from onefold.processor.core.abc import Codec
from onefold.processor.core.topology import Topology
from onefold.processor.runtime.keeping import MEMORY, Keeping


class Kept(NamedTuple):
    """What is set.

    Attributes:
        kind: `auto`, `memory` or `disk`.
        folder: where files of states are, in a folder for each pipeline.
        memory_bytes: what all states of the process may take of memory.
    """

    kind: str
    folder: Path
    memory_bytes: int


IN_MEMORY = Kept(MEMORY, Path(), 0)


def keeping(
    kept: Kept,
    partitions: int,
    replicas: int,
    step: Callable[[str], None],
    topology: Topology,
    codec: Codec,
    partition: int,
    beat: Callable[[], None],
) -> Keeping:
    """Of one task, which has its share of the memory: as large as if the process had all tasks, which it may come to have."""
    if kept.kind == MEMORY:
        return Keeping(topology, codec, partition, beat=beat)
    # Not where all states are in memory: the library takes time to load.
    from onefold.processor.io.disk import RocksDisk

    share = kept.memory_bytes // partitions
    return Keeping(
        topology,
        codec,
        partition,
        kind=kept.kind,
        disk=RocksDisk(kept.folder / topology.name, partition, share // 2, replicas),
        memory_bytes=share,
        replicas=replicas > 1,
        wall=time.time,
        step=step,
        beat=beat,
    )
