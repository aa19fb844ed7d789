"""The mistakes in "Concurrent sausage", found by trying every order of small runs; and the mended machine, in the same ones.

What they mean: docs/decisions/decision-log.md. The shortest schedule of each is printed (`pytest -s -m matrix`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.explorer import Found, explore
from tests.support.seed_machine import (
    Batched,
    Printed,
    Process,
    Search,
    Store,
    alone,
    broom,
    handle_db,
    other,
    queue_of,
    writes_batches,
)

# No code of the product runs here.
pytestmark = pytest.mark.matrix

NAN = float("nan")


def each_once(expected: tuple[int, ...], others: int, store: Store, ended: bool) -> str:
    """Of every input that was handled an output in each of the expected queues, once and in order; and what others wrote."""
    fsm = dict(store).get("state", (0, None))[1]
    handled = fsm[1] if fsm is not None and fsm[0] == "HANDLING" else 0
    for position in (0, 1):
        found = [element.tag for element in queue_of(store, f"out{position}")]
        ours = [tag[1] for tag in found if tag[0] == "ours"]
        if any(element.value is None for element in queue_of(store, f"out{position}")):
            return f"out{position} has none in it"
        if len(set(found)) < len(found):
            return f"out{position} has an output twice"
        if ours != sorted(ours) or (position in expected and not set(range(handled)) <= set(ours)):
            return f"out{position} has {ours} of us, and {handled} inputs were handled"
        if ended and position == 0 and len(found) - len(ours) != others and expected:
            return f"out{position} has {len(found) - len(ours)} of others, which wrote {others}"
    return ""


def same(*values: Any) -> Callable[[int, int], tuple[Any, ...]]:
    """Whoever handles whatever: these are the outputs."""
    return lambda process, at: values


def differing(process: int, at: int) -> tuple[Any, ...]:
    """Chance decides."""
    return f"a{process}", f"b{process}"


def searched(
    outputs: Callable[[int, int], tuple[Any, ...]],
    *others: Process,
    replicas: int = 2,
    inputs: int = 1,
    expected: tuple[int, ...] = (0,),
    mended: bool = False,
    crashes: int = 0,
    lost: int = 0,
) -> Found:
    """The handler's machine in some replicas, among others that write to the same queues."""
    machine = Printed(outputs, inputs, stamped=mended, skips=mended)
    writers = sum(process.__name__ == "writes" for process in others)
    search = Search((*[machine.handle] * replicas, *others), partial(each_once, expected, writers), replicas)
    return explore(search.start(crashes, lost), search.steps, search.fault)


def counted(store: Store, ended: bool) -> str:
    """What lies below the index, and nothing else."""
    index, counter = dict(store).get("db", (0, None))[1] or (0, 0)
    below = sum(bool(element.value) for element in queue_of(store, "counts")[:index])
    return f"the counter is {counter}, and {below} lie below index {index}" if counter != below else ""


def database(*, waits: bool = True, first_committer_wins: bool = True, mended: bool = False, lost: int = 0) -> Found:
    """Two database handlers, and a writer of two values."""
    handler = handle_db(waits or mended, first_committer_wins or mended, ends=2)
    search = Search((handler, handler, other("counts", True), other("counts", True)), counted)
    return explore(search.start(lost=lost), search.steps, search.fault)


MISTAKES: dict[str, tuple[Callable[..., Found], str]] = {
    "no value yet": (partial(database, waits=False), "the counter is 0, and 1 lie below index 1"),
    "an equal value of another handler": (
        partial(searched, same("a"), other("out0", "a"), replicas=1),
        "out0 has [] of us, and 1 inputs were handled",
    ),
    "a value that is not equal to itself": (partial(searched, same(NAN)), "out0 has an output twice"),
    "none as an output": (partial(searched, same("a", None)), "out1 has none in it"),
    "no outputs": (partial(searched, same(), expected=()), "there is no output to write"),
    "read committed": (
        partial(database, first_committer_wins=False),
        "the counter is 2, and 1 lie below index 1",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_and_mended(name: str) -> None:
    """By the shortest schedule; the mended machine passes the very same search."""
    run, sentence = MISTAKES[name]
    found = run()

    print(f"\n{name}: {found}")  # noqa: T201
    assert sentence in found.fault, str(found)
    after = run(mended=True)
    assert after.fault == "", str(after)


@pytest.mark.parametrize("mended", [False, True], ids=["printed", "mended"])
@pytest.mark.parametrize(
    "run",
    [
        partial(searched, differing, expected=(0, 1), crashes=1, lost=1),
        partial(searched, same("a"), inputs=2, crashes=1, lost=1),
        partial(searched, same("a"), other("out0", "b"), lost=1),
        partial(searched, same("a"), other("out0", "b"), other("out0", "c"), replicas=1, crashes=1),
    ],
    ids=["of two minds", "equal values of our own", "a late writer among others", "two others"],
)
def test_what_looks_wrong_and_is_not(run: Callable[..., Found], mended: bool) -> None:
    """Late writers, lost answers, `version += 1`, the output's position, results that differ, equal values of one's own."""
    found = run(mended=mended)

    assert found.fault == "", str(found)
    assert found.states > 5000


@pytest.mark.parametrize("mended", [False, True], ids=["printed", "mended"])
def test_any_replica_alone_comes_to_the_end(mended: bool) -> None:
    """From every state that there is: it is lock-free, as the article says. And all of them together come to it."""
    machine = Printed(differing, stamped=mended, skips=mended)
    search = Search((machine.handle, machine.handle), lambda store, ended: "ended" if ended else "")
    start = search.start(crashes=1)

    waits = explore(start, search.steps, lambda world: "" if alone(search, world, 0) else "waits")
    assert waits.fault == "", str(waits)
    assert explore(start, search.steps, search.fault).fault == "ended"


def test_the_mended_machine_holds_where_the_printed_one_does_not() -> None:
    """Two replicas, an equal value of another handler, a lost answer; two database handlers that lose an answer."""
    assert searched(same("a"), other("out0", "a"), mended=True, lost=1).fault == ""
    assert database(mended=True, lost=1).fault == ""


# --- batches


BATCHES = (("a", "b"), ("c",))


def all_in_order(batches: tuple[tuple[Any, ...], ...], store: Store, ended: bool) -> str:
    """What was taken are the first of all values, and in the end all of them."""
    whole = tuple(value for batch in batches for value in batch)
    taken = (dict(store).get("state", (0, None))[1] or (0, 0, ()))[2]
    if taken != whole[: len(taken)] or (ended and taken != whole):
        return f"taken was {taken} of {whole}"
    return ""


def batched(batches: tuple[tuple[Any, ...], ...], *, refers_first: bool, skips: bool) -> Found:
    """Two replicas that read what one writes, with a crash of one of them and a lost answer."""
    machine = Batched(len(batches), skips)
    processes = (machine.handle, machine.handle, writes_batches(batches, refers_first))
    search = Search(processes, partial(all_in_order, batches))
    return explore(search.start(crashes=1, lost=1), search.steps, search.fault)


@pytest.mark.parametrize(
    ("skips", "fault"),
    [(False, "is asked for"), (True, "taken was ('c',) of ('a', 'b', 'c')")],
    ids=["there is none yet", "it goes on"],
)
def test_a_batch_that_grows_after_it_was_referred_to_loses_values(skips: bool, fault: str) -> None:
    """Who comes to the end of what is there goes on to the next reference. An end that grows is none."""
    found = batched(BATCHES, refers_first=True, skips=skips)

    print(f"\n{found}")  # noqa: T201
    assert fault in found.fault, str(found)


def test_a_batch_without_a_value_has_no_position() -> None:
    """As an empty list of outputs has none to write."""
    found = batched((("a",), (), ("c",)), refers_first=False, skips=False)

    print(f"\n{found}")  # noqa: T201
    assert "is asked for" in found.fault


@pytest.mark.parametrize("batches", [BATCHES, (("a",), (), ("c",)), (("a", "a"), ("a",))])
def test_whole_batches_that_may_be_empty_are_taken_once_and_in_order(batches: tuple[tuple[Any, ...], ...]) -> None:
    """A composed pointer is no more trouble than an index: the version of the state guards both."""
    found = batched(batches, refers_first=False, skips=True)

    assert found.fault == "", str(found)
    assert found.states > 500


# --- true of the article's words, and no mistake of its handler


def test_a_plain_push_is_not_to_be_repeated() -> None:
    """When its answer is lost it finds its own value in the way, and goes on to the next cell."""
    search = Search((other("out0", "a"),), partial(each_once, (), 1), frail=1)
    found = explore(search.start(lost=1), search.steps, search.fault)

    print(f"\n{found}")  # noqa: T201
    assert "out0 has an output twice" in found.fault


def test_a_cleared_cell_is_empty_for_a_late_writer() -> None:
    """Elements have to outlive the longest delay: the article says so, and nothing holds it."""
    clearing = (other("out0", "b"), broom("out0[0]"))
    found = searched(same("a"), *clearing, expected=())

    print(f"\n{found}")  # noqa: T201
    assert "out0 has an output twice" in found.fault
