"""CPU time of running processes, sampled, so that the use in any past interval can be computed."""

import threading
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil

_SAMPLE_S = 0.25
# Finding the children walks through all processes, which costs more than a sample.
_FAMILY_S = 2.0


class CpuSampler:
    """Sampler of processes and their children, from creation until `stop`."""

    def __init__(self, pids: Mapping[str, Sequence[int]]) -> None:
        self._processes = {name: [psutil.Process(pid) for pid in found] for name, found in pids.items()}
        self._samples: dict[str, list[tuple[float, float]]] = {name: [] for name in pids}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample and stop."""
        self._done.set()
        self._thread.join()

    def since(self) -> float:
        """Unix time from which the samples cover all processes."""
        return max(samples[0][0] for samples in self._samples.values())

    def seconds(self, name: str, start: float, end: float) -> float:
        """CPU seconds used between two unix times."""
        samples = self._samples[name]
        return _at(samples, end) - _at(samples, start)

    def _sample(self) -> None:
        last, families, found_at = False, {}, 0.0
        while not last:
            last = self._done.wait(_SAMPLE_S)
            if last or time.monotonic() - found_at > _FAMILY_S:
                families, found_at = self._families(), time.monotonic()
            for name, members in families.items():
                used = sum(map(_used, members))
                self._samples[name].append((time.time(), used))

    def _families(self) -> dict[str, list[psutil.Process]]:
        return {name: [m for one in processes for m in _family(one)] for name, processes in self._processes.items()}


def _family(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def _used(process: psutil.Process) -> float:
    """CPU seconds of a process and its ended children, whose time the parent inherits."""
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def _at(samples: list[tuple[float, float]], moment: float) -> float:
    """Interpolate between two samples; 0 without samples."""
    if not samples:
        return 0.0
    after = bisect_left(samples, (moment, 0.0))
    if after == 0 or after == len(samples):
        return samples[min(after, len(samples) - 1)][1]
    (t0, used0), (t1, used1) = samples[after - 1], samples[after]
    return used0 + (used1 - used0) * (moment - t0) / (t1 - t0)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Percentile of sorted values: the value below which `share` of the values lie."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
