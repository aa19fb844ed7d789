"""How many processor cores there are for us, and how many processes that makes."""

from __future__ import annotations

import math
import os
from pathlib import Path

# What a container may use, by the kernel's second version of control groups: "<microseconds> <of so many>", or "max ...".
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def available(quota: Path = QUOTA) -> int:
    """Cores that this process may run on; a container's share counts, and a part of a core as one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text(encoding="utf-8").split()
        return max(1, min(cores, math.ceil(int(allowed) / int(period))))
    except (OSError, ValueError):
        return cores


def processes(pipelines: int) -> int:
    """How many processes fold each of so many pipelines: all cores, shared among the pipelines, and one for each at least.

    More would take turns on the same cores, and each takes memory for itself.
    """
    return max(1, available() // max(1, pipelines))
