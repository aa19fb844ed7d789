"""Two clients of the same upload, sweeps without any patience, and a worker: all orders of their calls, each dying anywhere.

In every state that can be reached it is asked what would be if everybody died now: what an entry names is there, with its bytes
and without a mark, and of what no entry names nothing is left after the last sweep.
"""

from collections.abc import Sequence
from io import BytesIO

import pytest

from onefold.jobs.apps.sheets import uploads
from onefold.jobs.protocols import Objects
from tests.support.explorer import Found, explore
from tests.support.uploads import CONTENT, Actor, Cast, Everybody, Produce, World
from tests.support.wrong_uploads import (
    NeverUnmark,
    UnmarkAfterwards,
    UnmarkBefore,
    create_unmarked,
    delete_at_once,
    upload_then_mark,
)

pytestmark = pytest.mark.promise("uploads-are-kept")


def searched(cast: Cast, *, client_runs: Sequence[int] = (2, 1), sweeps: int = 2) -> Found:
    clients = tuple(Actor(None, runs) for runs in client_runs)
    return explore(Everybody(World(), clients, Actor(None, sweeps)), cast.steps, cast.fault)


@pytest.mark.long  # 11 s
@pytest.mark.slow  # all orders of two clients, two sweeps and a worker: 28,863 states
def test_nothing_named_is_lost_and_nothing_else_is_left() -> None:
    found = searched(Cast())
    assert not found.fault, found
    assert found.states > 20_000


def mark_afterwards(objects: Objects, produce: Produce) -> None:
    """A client that writes first."""
    made = create_unmarked(objects, "sheet-1", "request-1", BytesIO(CONTENT))
    upload_then_mark(objects, made, BytesIO(CONTENT))
    uploads.complete(objects, produce, made)


@pytest.mark.parametrize(
    ("cast", "fault"),
    [
        (Cast(client=mark_afterwards), "what no entry names is there"),
        (Cast(sweep=delete_at_once), "the last sweep took what an entry names"),
        (Cast(effect=UnmarkAfterwards), "what no entry names is there"),
        (Cast(effect=UnmarkBefore), "what no entry names is there"),
        (Cast(effect=NeverUnmark), "what an entry names is marked"),
    ],
    ids=["mark afterwards", "delete at once", "unmark afterwards", "unmark before", "never unmark"],
)  # fmt: skip
def test_each_rule_is_needed(cast: Cast, fault: str) -> None:
    """Without it the same search finds what goes wrong."""
    assert searched(cast).fault.startswith(fault)


def test_the_model_decides_once() -> None:
    """As the pipeline does: what comes first holds, and everything later is answered by it."""
    complete, discard = b'{"action": "complete"}', b'{"action": "discard"}'
    kept = World().folded(complete).folded(complete).folded(discard)
    assert (kept.decided, kept.entries, kept.refusals, [one.keep for one in kept.jobs]) == (
        "completed",
        1,
        0,
        [True] * 2,
    )
    gone = World().folded(discard).folded(complete).folded(discard)
    assert (gone.decided, gone.entries, gone.refusals, [one.keep for one in gone.jobs]) == (
        "discarded",
        0,
        1,
        [False] * 2,
    )
