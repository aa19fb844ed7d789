"""A store whose writer may have lost its session: it is asked for that before each write."""

from collections.abc import Callable
from pathlib import Path

import pytest

from onefold.jobs.objects.guarded import Guarded
from onefold.jobs.objects.local import LocalStore

WRITES: dict[str, Callable[[Guarded], object]] = {
    "put": lambda store: store.put("payloads/new", b"content"),
    "put_stream": lambda store: store.put_stream("payloads/new", iter([b"content"])),
    "delete": lambda store: store.delete("payloads/old"),
    "mark": lambda store: store.mark("payloads/new"),
    "unmark": lambda store: store.unmark("payloads/old"),
}


class Cut(Exception):
    """The session has ended."""


def cut() -> None:
    raise Cut


def content(store: LocalStore | Guarded) -> tuple[list[str], list[str]]:
    return [*store.ids()], [mark.name for mark in store.marks()]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    made = LocalStore(tmp_path / "store")
    made.put("payloads/old", b"content")
    made.mark("payloads/old")
    return made


@pytest.mark.promise("resets-wait-for-workers")
@pytest.mark.parametrize("method", WRITES)
def test_without_its_session_nobody_writes(store: LocalStore, method: str) -> None:
    before = content(store)
    with pytest.raises(Cut):
        WRITES[method](Guarded(store, cut))
    assert content(store) == before
    WRITES[method](Guarded(store, lambda: None))
    assert content(store) != before


def test_it_reads_all_the_same(store: LocalStore) -> None:
    guarded = Guarded(store, cut)
    assert (guarded.get("payloads/old", 0, 4), guarded.size("payloads/old")) == (b"cont", 7)
    assert content(guarded) == (["payloads/old"], ["payloads/old"])
