"""Drain rate of a program, observed from outside by the committed offsets of the consumer group: the same rule for every
program."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise

import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition

from onefold import kafka_client
from onefold.bench.cpu import CpuSampler
from onefold.stack.child import Child, tail

_LOOK_S = 0.05
_ANSWER_S = 10.0
_QUARTERS = 4

#: (unix time, records committed so far)
Seen = tuple[float, int]


@dataclass(frozen=True)
class Drained:
    """Observations of a drain. The clock starts at the first commit, whose records do not count: programs start until then.

    Attributes:
        seen: every increase of the committed records.
        program_s, broker_s: CPU seconds used between two unix times.
        memory_mib: memory of all processes of the program, at the end.
        steal: share of the machine's CPU time taken by other machines.
    """

    seen: Sequence[Seen]
    program_s: Callable[[float, float], float]
    broker_s: Callable[[float, float], float]
    memory_mib: float
    steal: float

    def figures(self) -> dict[str, float | list[int | None]]:
        """Figures of the whole drain, of the warm part after the first quarter of the records, and of each quarter.

        Rates are in records per second; a quarter committed together with another has the rate None. CPU time is in
        microseconds per record. Raises RuntimeError if no commit follows the first quarter.
        """
        marks = self._marks()
        whole, warm = (marks[0], marks[-1]), (marks[1], marks[-1])
        if warm[0] == warm[1]:
            raise RuntimeError(
                f"{marks[-1][1]:,} events are committed in too few transactions to be timed: take more --events"
            )
        rates = [_rate(first, last) if first != last else None for first, last in pairwise(marks)]
        return {
            "seconds": round(whole[1][0] - whole[0][0], 2),
            "events_per_second": _rate(*whole),
            "warm_events_per_second": _rate(*warm),
            "quarters": rates,
            "cpu_us": _cpu(self.program_s, *whole),
            "warm_cpu_us": _cpu(self.program_s, *warm),
            "broker_cpu_us": _cpu(self.broker_s, *whole),
            "memory_mib": round(self.memory_mib),
            "steal_pct": round(100 * self.steal, 1),
        }

    def _marks(self) -> list[Seen]:
        """The first commit, and the commits that complete each quarter of the remaining records."""
        (_, first), (_, total) = self.seen[0], self.seen[-1]
        wanted = [first + (total - first) * number / _QUARTERS for number in range(1, _QUARTERS + 1)]
        return [self.seen[0], *(next(one for one in self.seen if one[1] >= count) for count in wanted)]


def drain(
    client: Mapping[str, str],
    group: str,
    ends: Mapping[tuple[str, int], int],
    child: Child,
    broker: int,
    limit_s: float,
) -> Drained:
    """Observe a just started program until the group has committed all of `ends`. The program still runs afterwards.

    Args:
        client: librdkafka settings.
        broker: pid of the broker.

    Raises:
        RuntimeError: the program ended early, or takes too long.
    """
    cpu = CpuSampler({"program": [child.pid or 0], "broker": [broker]})
    before = _times()
    settings = {**client, "group.id": group, "enable.auto.commit": False}
    try:
        with closing(kafka_client.consumer(settings)) as asked:
            seen = _followed(lambda: _committed(asked, ends), sum(ends.values()), child, limit_s)
        memory = _memory_mib(child.pid or 0)
    finally:
        cpu.stop()
    return Drained(
        seen,
        lambda start, end: cpu.seconds("program", start, end),
        lambda start, end: cpu.seconds("broker", start, end),
        memory,
        stolen(before, _times()),
    )


def _followed(committed: Callable[[], int], total: int, child: Child, limit_s: float) -> list[Seen]:
    seen: list[Seen] = []
    deadline = time.monotonic() + limit_s
    while not seen or seen[-1][1] < total:
        if child.poll() is not None:
            raise RuntimeError(f"{child.service.name} ended; its log ends with:\n{tail(child.service.log)}")
        if time.monotonic() > deadline:
            found = seen[-1][1] if seen else 0
            raise RuntimeError(f"{found:,} of {total:,} events were committed within {limit_s:.0f} s")
        count = committed()
        if count > (seen[-1][1] if seen else 0):
            seen.append((time.time(), count))
        time.sleep(_LOOK_S)
    return seen


def _committed(group: Consumer, places: Iterable[tuple[str, int]]) -> int:
    """Number of records that a group has committed in these partitions; 0 while unknown.

    `group` is a consumer with the group's name that does not join the group. An AdminClient is not possible: before the
    coordinator exists, librdkafka 2.16 crashes.
    """
    asked = [TopicPartition(topic, partition) for topic, partition in places]
    with suppress(KafkaException):
        return sum(max(0, found.offset) for found in group.committed(asked, timeout=_ANSWER_S))
    return 0


def stolen(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Share of CPU time taken by other machines between two samples of CPU times; 0 where the system does not count steal
    time."""
    # User time already includes the time of guests.
    spent = {name: after[name] - before[name] for name in after if not name.startswith("guest")}
    whole = sum(spent.values())
    return spent.get("steal", 0.0) / whole if whole else 0.0


def _times() -> dict[str, float]:
    return dict(psutil.cpu_times()._asdict())


def _rate(first: Seen, last: Seen) -> int:
    return round((last[1] - first[1]) / (last[0] - first[0]))


def _cpu(used: Callable[[float, float], float], first: Seen, last: Seen) -> float:
    return round(used(first[0], last[0]) / (last[1] - first[1]) * 1e6, 1)


def _memory_mib(pid: int) -> float:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return sum(float(one.memory_info().rss) for one in family) / 2**20
    return 0.0
