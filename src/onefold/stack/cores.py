"""The number of available processor cores, and the number of processes for a pipeline."""

from __future__ import annotations

import math
import os
from pathlib import Path

# The CPU limit of a container, by control groups v2: "<quota> <period>" in microseconds, or "max <period>".
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def available(quota: Path = QUOTA) -> int:
    """The number of cores of the process, within the CPU limit of a container; a part of a core counts as one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text(encoding="utf-8").split()
        return max(1, min(cores, math.ceil(int(allowed) / int(period))))
    except (OSError, ValueError):
        return cores


def processes(pipelines: int) -> int:
    """The number of processes for each pipeline: the cores divided by the pipelines, at least 1.

    More processes would compete for the same cores, and each process needs memory.
    """
    return max(1, available() // max(1, pipelines))
