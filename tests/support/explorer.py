"""Breadth-first search of all orders of steps, so that the first fault found has the shortest schedule."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


class Found(NamedTuple):
    """Number of states, fault of a state ("" if none), and the steps to that state."""

    states: int
    fault: str
    schedule: list[str]

    def __str__(self) -> str:
        steps = "\n".join(f"  {number}. {step}" for number, step in enumerate(self.schedule, 1))
        return f"{self.fault or 'nothing is wrong'}, after {self.states} states:\n{steps}"


def explore(
    initial: S,
    steps: Callable[[S], Iterable[tuple[str, S]]],
    fault: Callable[[S], str],
    states_max: int = 500_000,
) -> Found:
    """Visit every reachable state once.

    Args:
        initial: the first state.
        steps: possible next steps, each with a name.
        fault: describes the fault of a state, or returns "".
        states_max: a larger number of states is an error in the test, because the search would not be complete.
    """
    came: dict[S, tuple[S, str] | None] = {initial: None}
    queue = deque([initial])
    while queue:
        state = queue.popleft()
        if sentence := fault(state):
            schedule = []
            before = came[state]
            while before is not None:
                schedule.append(before[1])
                before = came[before[0]]
            return Found(len(came), sentence, schedule[::-1])
        for name, after in steps(state):
            if after not in came:
                came[after] = state, name
                queue.append(after)
        assert len(came) <= states_max, f"more than {states_max} states"
    return Found(len(came), "", [])
