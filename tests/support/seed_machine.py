"""The machine of the article "Concurrent sausage" as printed, over versioned cells in memory, for exhaustive search of all
orders.

A process is a function from its memory to a generator, which requests one store operation at a time, and returns its next
memory. Between any two operations every other process may run, the process may crash and lose its memory, or an answer may
be lost and the operation requested again.

    push, get_next_index, push_at, push_at_idempotent, handle, handle_db     as printed, line by line
    Printed(...)                                                             which of the lines are fixed
    writes_batches, Batched(...)                                             the article's text about batches
"""

from collections.abc import Callable, Generator, Iterator
from functools import cache
from typing import Any, NamedTuple

#: name -> (version, value), as ordered pairs. A missing cell has version 0.
Store = tuple[tuple[str, tuple[int, Any]], ...]
Asking = Generator[Any, Any, Any]
#: `(number, memory, None at first) -> requests, and the next memory`.
Process = Callable[[int, Any], Asking]
DONE, FAILED = "done", "failed"


class Get(NamedTuple):
    """Read a cell: (version, value)."""

    name: str


class Cas(NamedTuple):
    """`CAS_versioned`: compare and swap by version."""

    name: str
    version: int
    value: Any


class Update(NamedTuple):
    """Apply a function to the value, whatever the version."""

    name: str
    change: Callable[[Any], Any]


class Remove(NamedTuple):
    """Delete a cell, as if it had never existed."""

    name: str


def run(store: Store, asked: Any) -> tuple[Any, Store]:
    """Run one operation atomically: the answer, and the new store."""
    cells = dict(store)
    version, value = cells.get(asked.name, (0, None))
    if isinstance(asked, Get):
        return (version, value), store
    if isinstance(asked, Cas):
        if version != asked.version:
            return False, store
        cells[asked.name] = (version + 1, asked.value)
    elif isinstance(asked, Update):
        cells[asked.name] = (version + 1, asked.change(value))
    else:
        cells.pop(asked.name, None)
    return True, tuple(sorted(cells.items()))


class Element(NamedTuple):
    """Element of a queue. `tag`: the origin, known to the test only; `stamp`: the fixed machine's identification."""

    value: Any
    tag: tuple[Any, ...]
    stamp: tuple[Any, ...] | None = None


# --- the queue


def update_index(queue: str, index: int) -> Asking:
    while True:
        version, current = yield Get(f"{queue}.index")
        if (current or 0) >= index:
            return
        if (yield Cas(f"{queue}.index", version, index)):
            return


def push(queue: str, element: Element) -> Asking:
    index = (yield Get(f"{queue}.index"))[1] or 0
    while not (yield Cas(f"{queue}[{index}]", 0, element)):
        index = max((yield Get(f"{queue}.index"))[1] or 0, index + 1)
    yield from update_index(queue, index + 1)


def get_next_index(queue: str) -> Asking:
    index = (yield Get(f"{queue}.index"))[1] or 0
    while (yield Get(f"{queue}[{index}]"))[0]:
        index = max(index + 1, (yield Get(f"{queue}.index"))[1] or 0)
    return index


def push_at(queue: str, element: Element, index: int) -> Asking:
    if (yield Cas(f"{queue}[{index}]", 0, element)):
        yield from update_index(queue, index + 1)
        return True
    return False


def push_at_idempotent(queue: str, element: Element, index: int) -> Asking:
    if (yield from push_at(queue, element, index)):
        return True
    found = (yield Get(f"{queue}[{index}]"))[1]
    if found is None:
        return False
    return found.value == element.value if element.stamp is None else found.stamp == element.stamp


# --- the handlers


class Printed(NamedTuple):
    """The generic handler with existing `inputs`; for each input `my_handler` returns one value per queue.

    Attributes:
        outputs: `(process, input) -> values`. A value None adds no element.
        inputs: number of inputs.
        stamped: fixed: an element carries, and is identified by, the handler's name and the version of the WRITING state.
        skips: fixed: None is not pushed, and an empty list of outputs leads back to HANDLING.
    """

    outputs: Callable[[int, int], tuple[Any, ...]]
    inputs: int = 1
    stamped: bool = False
    skips: bool = False

    def handle(self, process: int, memory: Any) -> Asking:
        """One turn of `while true`."""
        if memory is None:
            return (yield Get("state"))
        version, fsm = memory
        match fsm:
            case None:  # the initial state
                fsm = ("HANDLING", 0)
            case ("HANDLING", at) if at == self.inputs:
                return DONE
            case ("HANDLING", at):
                # Results are nondeterministic: each process has different outputs.
                outputs = self.outputs(process, at)
                fsm = self.next_output(at + 1, outputs, 0)
            case ("PREPARING", at, outputs, position):
                index = yield from get_next_index(f"out{position}")
                fsm = ("WRITING", at, outputs, position, index)
            case ("WRITING", at, outputs, position, index):
                stamp = ("ours", version) if self.stamped else None
                element = Element(outputs[position], ("ours", at - 1, position), stamp)
                if (yield from push_at_idempotent(f"out{position}", element, index)):
                    position += 1
                fsm = self.next_output(at, outputs, position)
        if (yield Cas("state", version, fsm)):
            return version + 1, fsm
        return (yield Get("state"))

    def next_output(self, at: int, outputs: tuple[Any, ...], position: int) -> tuple[Any, ...]:
        """Next state, PREPARING or HANDLING. As printed, the end is checked after each written output, not before the first."""
        while self.skips and position < len(outputs) and outputs[position] is None:
            position += 1
        if position == len(outputs) and (position or self.skips):
            return "HANDLING", at
        return "PREPARING", at, outputs, position


def other(queue: str, value: Any) -> Process:
    """A second handler that writes to one of the same queues."""

    def writes(number: int, memory: Any) -> Asking:
        yield from push(queue, Element(value, ("other", number)))
        return DONE

    return writes


def broom(*names: str) -> Process:
    """Delete cells after the queue has passed them."""

    def process(number: int, memory: Any) -> Asking:
        for name in names:
            queue, _, index = name.rstrip("]").partition("[")
            if ((yield Get(f"{queue}.index"))[1] or 0) > int(index) + 1:
                yield Remove(name)
        return DONE

    return process


def handle_db(waits: bool, first_committer_wins: bool, ends: int) -> Process:
    """The database's handler: index and counter are one row, written in one transaction.

    Args:
        waits: fixed: without a value the transaction rolls back, and the index stays.
        first_committer_wins: of two transactions with the same index, the second fails; otherwise, as under read committed,
            the second waits for the first and then writes.
        ends: index at which the process ends.
    """

    def process(number: int, memory: Any) -> Asking:
        version, row = yield Get("db")
        index, counter = row or (0, 0)
        if index == ends:
            return DONE
        found, element = yield Get(f"counts[{index}]")
        if not found and waits:
            return None
        more = 1 if element is not None and element.value else 0
        if first_committer_wins:
            yield Cas("db", version, (index + 1, counter + more))
        else:
            # increment_counter adds to the present value; the index was computed before.
            yield Update("db", lambda row: (index + 1, (row or (0, 0))[1] + more))
        return None

    return process


# --- batches: "references to groups of values", whose values "can be prepared little by little"


def writes_batches(batches: tuple[tuple[Any, ...], ...], refers_first: bool) -> Process:
    """Writer of batches: each batch is a cell that grows value by value, with a reference in the queue `in`.

    Args:
        refers_first: push the reference before the values exist; fixed: afterwards.
    """

    def process(number: int, memory: Any) -> Asking:
        at = memory or 0
        if at == len(batches):
            return DONE
        reference = Element(f"batch{at}", ("batch", at))
        if refers_first:
            yield from push("in", reference)
        for size in range(len(batches[at]) + 1):
            yield Cas(f"batch{at}", size, batches[at][:size])
        if not refers_first:
            yield from push("in", reference)
        return at + 1

    return process


class Batched(NamedTuple):
    """A handler whose pointer consists of an index in the queue and a position in that batch. The state holds the read inputs.

    Attributes:
        batches: number of references to read.
        skips: fixed: a position without value leads to the next reference.
    """

    batches: int
    skips: bool

    def handle(self, process: int, memory: Any) -> Asking:
        """One turn."""
        if memory is None:
            return (yield Get("state"))
        version, state = memory
        index, position, taken = state or (0, 0, ())
        if index == self.batches:
            return DONE
        reference = (yield Get(f"in[{index}]"))[1]
        if reference is None:
            return None
        values = (yield Get(reference.value))[1] or ()
        if self.skips and position >= len(values):
            state = index + 1, 0, taken
        else:
            taken = (*taken, values[position])
            state = (index, position + 1, taken) if position + 1 < len(values) else (index + 1, 0, taken)
        if (yield Cas("state", version, state)):
            return version + 1, state
        return (yield Get("state"))


# --- the search


class World(NamedTuple):
    """The store, memory and later answers of each process, and the remaining numbers of failures."""

    store: Store
    processes: tuple[tuple[Any, tuple[Any, ...]], ...]
    crashes: int = 0
    lost: int = 0


class Search(NamedTuple):
    """Processes, the invariant of their store (during the run and at the end), and the number of processes that may fail."""

    processes: tuple[Process, ...]
    fault_of: Callable[[Store, bool], str]
    frail: int = 2

    def start(self, crashes: int = 0, lost: int = 0) -> World:
        return World((), ((None, ()),) * len(self.processes), crashes, lost)

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        for number, (memory, answers) in enumerate(world.processes):
            if memory in (DONE, FAILED):
                continue
            asked, _ = resumed(self.processes[number], number, memory, answers)
            answer, store = run(world.store, asked)
            after = self._answered(number, memory, (*answers, answer))
            said = f"{number}: {_spelt(asked)} -> {_spelt(answer)}"
            yield said, _with(world._replace(store=store), number, after)
            if number >= self.frail:
                continue
            if world.lost and isinstance(asked, Cas) and answer:
                yield f"{said}, and the answer is lost", world._replace(store=store, lost=world.lost - 1)
            if world.crashes and (memory, answers) != (None, ()):
                yield f"{number}: crashes", _with(world._replace(crashes=world.crashes - 1), number, (None, ()))

    def _answered(self, number: int, memory: Any, answers: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        while True:
            found, ended = resumed(self.processes[number], number, memory, answers)
            if not ended:
                return memory, answers
            memory, answers = found, ()
            if found in (DONE, FAILED):
                return found, ()

    def fault(self, world: World) -> str:
        if any(memory == FAILED for memory, _ in world.processes):
            return "there is no output to write, and one is asked for"
        return judged(self.fault_of, world.store, all(memory == DONE for memory, _ in world.processes))


def alone(search: Search, world: World, number: int, steps_max: int = 100) -> bool:
    """Whether a process ends while all others pause."""
    for _ in range(steps_max):
        if world.processes[number][0] == DONE:
            return True
        named = search.steps(world._replace(crashes=0, lost=0))
        world = next(after for name, after in named if name.startswith(f"{number}:"))
    return False


@cache
def resumed(process: Process, number: int, memory: Any, answers: tuple[Any, ...]) -> tuple[Any, bool]:
    """The request of a process after those answers, or its next memory; and whether it is the latter."""
    asking = process(number, memory)
    try:
        asked = next(asking)
        for answer in answers:
            asked = asking.send(answer)
    except StopIteration as end:
        return end.value, True
    except IndexError:
        return FAILED, True
    return asked, False


@cache
def judged(fault_of: Callable[[Store, bool], str], store: Store, ended: bool) -> str:
    return fault_of(store, ended)


def _with(world: World, number: int, process: tuple[Any, tuple[Any, ...]]) -> World:
    return world._replace(processes=(*world.processes[:number], process, *world.processes[number + 1 :]))


def _spelt(thing: Any) -> str:
    if isinstance(thing, Get | Remove):
        return f"{type(thing).__name__.lower()} {thing.name}"
    if isinstance(thing, Cas):
        return f"CAS {thing.name} {thing.version} {_spelt(thing.value)}"
    if isinstance(thing, Update):
        return f"update {thing.name}"
    if isinstance(thing, Element):
        return f"<{thing.value} of {' '.join(map(str, thing.tag))}>"
    return f"({', '.join(map(_spelt, thing))})" if isinstance(thing, tuple) else str(thing)


def queue_of(store: Store, queue: str) -> list[Element]:
    """All elements of a queue in order."""
    return [value for name, (_, value) in store if name.startswith(f"{queue}[")]
