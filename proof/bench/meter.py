"""Processor time of running processes, sampled, so that it can be asked for any stretch of time afterwards."""

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress

import psutil

# Finding the children means a walk through all processes, so not too often.
_SAMPLE_S = 0.25


class Meter:
    """Samples processes with their children from creation until `stop`."""

    def __init__(self, pids: dict[str, Sequence[int]]) -> None:
        self._processes = {name: [psutil.Process(pid) for pid in found] for name, found in pids.items()}
        self._samples: dict[str, list[tuple[float, float]]] = {name: [] for name in pids}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take one last sample and end."""
        self._done.set()
        self._thread.join()

    def since(self) -> float:
        """The moment (unix time) from which on it knows everything."""
        return max(samples[0][0] for samples in self._samples.values())

    def seconds(self, name: str, start: float, end: float) -> float:
        """Processor seconds used between two moments (unix time)."""
        samples = self._samples[name]
        return _at(samples, end) - _at(samples, start)

    def _sample(self) -> None:
        while True:
            last = self._done.wait(_SAMPLE_S)
            for name, processes in self._processes.items():
                used = sum(map(_used, processes))
                self._samples[name].append((time.time(), used))
            if last:
                return


def _used(process: psutil.Process) -> float:
    """Of a process and its children, those that have ended included: their parent inherits what they used."""
    used = 0.0
    with suppress(psutil.NoSuchProcess):
        for member in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                times = member.cpu_times()
                used += times.user + times.system + times.children_user + times.children_system
    return used


def _at(samples: list[tuple[float, float]], moment: float) -> float:
    """Between two samples, in proportion; 0 while there is none."""
    if not samples:
        return 0.0
    after = bisect_left(samples, (moment, 0.0))
    if after == 0 or after == len(samples):
        return samples[min(after, len(samples) - 1)][1]
    (t0, used0), (t1, used1) = samples[after - 1], samples[after]
    return used0 + (used1 - used0) * (moment - t0) / (t1 - t0)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values the one below which `share` of them lie."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
