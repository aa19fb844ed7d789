"""Every order in which steps can happen, breadth first: the first fault that is found has the shortest schedule."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


class Found(NamedTuple):
    """How many states there were, what was wrong in one ("" when nothing in any), and the steps that lead there."""

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
    """Visit every state that the steps lead to, each once.

    Args:
        initial: where it begins.
        steps: what may happen next, each with its name.
        fault: what is wrong in a state, "" when nothing.
        states_max: more than these are a mistake in the test: it would not be a search of all.
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
