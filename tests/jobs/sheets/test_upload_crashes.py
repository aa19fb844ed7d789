"""A crash at every step of an upload, on the real fold, the real tables and a real store: it ends as it does without one.

Which order the calls of an upload, a sweep and a worker may come in, and what is wrong with other rules, is searched in a model:
test_uploads_in_any_order.py. Here the model is held against what it is a model of.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from onefold.jobs import worker
from onefold.jobs.objects.local import LocalStore
from onefold.jobs.objects.store import Store
from onefold.processor.apps.sheets import TOPOLOGY, State, handle
from onefold.processor.core.values import Event
from onefold.testing import STEPS
from tests.support.migrated import migrate_all
from tests.support.uploads import CONTENT
from tests.support.whole_upload import CALLS, End, Faults, Parts, Servers, Upload, orders
from tests.support.wrong_uploads import (
    NeverUnmark,
    UnmarkAfterwards,
    UnmarkBefore,
    create_unmarked,
    delete_at_once,
    upload_then_mark,
)

ORDERS = orders()
SWEPT = tuple(f"sweep after {call}, all late" for call in CALLS)
#: Who has to do with the store; and all who take steps.
KEEPERS: tuple[str, ...] = ("client", "sweep", "worker")
EVERYBODY = (*KEEPERS, "sink", "fold")
DAY_S = 86_400.0


@pytest.fixture
def dsn(database: str, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a database with all tables. Processes die here, and no machine: nothing has to wait for a disk."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    migrate_all(database, checkout / "sql")
    with psycopg.connect(database, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
    return database


@pytest.fixture
def folder(tmp_path: Path, dsn: str) -> Iterator[Servers]:
    """With a folder as the store, which answers at once: for many runs."""
    found = Servers(LocalStore(tmp_path / "store"), dsn)
    yield found
    found.close()


@pytest.fixture
def servers(store: Store, dsn: str) -> Iterator[Servers]:
    """With a folder, and in the same test again with a bucket."""
    found = Servers(store, dsn)
    yield found
    found.close()


def ran(servers: Servers, words: str, order: Sequence[str], faults: Faults, **more: Any) -> tuple[End, list[str]]:
    """How it ended, and its steps. What is wrong at the end is told with what happened."""
    upload = Upload(servers, faults, **more)
    try:
        return upload.run(order), upload.steps
    except AssertionError as error:
        at = {
            number: upload.steps[number - 1]
            for number in (*faults.deadly, *faults.sleeps)
            if number <= len(upload.steps)
        }
        raise AssertionError(f"{error}; {words}, {at}, the client comes back: {faults.comes_back}") from error


def of(steps: Sequence[str], *who: str) -> list[int]:
    """The numbers of the steps that these take."""
    return [number for number, step in enumerate(steps, 1) if step.startswith(who)]


def test_the_steps_are_those_of_everybody(servers: Servers) -> None:
    """What is counted is not nothing."""
    end, steps = ran(servers, "plain", CALLS, Faults())
    assert end == End(1, False, (CONTENT,), 0)
    calls = ("mark", "mark", "put_stream", "size", "produce")
    assert [steps[number - 1] for number in of(steps, "client")] == [
        f"client, {word} {call}" for call in calls for word in ("before", "after")
    ]
    assert {f"fold, {step}" for step in STEPS} <= set(steps)
    assert {f"sink.{step}" for step in ("before_cas", "before_merge", "before_commit", "after_commit")} <= set(steps)
    # Of jobs with checkpoints, or with an order.
    unused = {"worked", "checkpointed", "woken", "put_again", "known", "put_back"}
    assert {f"worker, {step}" for step in worker.STEPS if step not in unused} <= set(steps)


def crashed_at_each_step(servers: Servers, words: str, who: Sequence[str]) -> None:
    """Crash these at each of their steps of this order, one step a run."""
    expected, steps = ran(servers, words, ORDERS[words], Faults())
    for number in of(steps, *who):
        end, _ = ran(servers, words, ORDERS[words], Faults({number}))
        assert end == expected, (words, number, steps[number - 1])


@pytest.mark.promise("crashes-of-uploads")
@pytest.mark.slow  # 5 s
def test_after_a_crash_at_any_step_it_ends_as_without_one(servers: Servers) -> None:
    """The fold, which begins again before anybody else goes on, has the most to do at once in these orders.

    On S3 a run takes ten times as long: only those who call the store crash there.
    """
    for words in SWEPT:
        crashed_at_each_step(servers, words, EVERYBODY if isinstance(servers.store, LocalStore) else KEEPERS)


@pytest.mark.matrix  # 20 s; in the orders that crash most, the test above
@pytest.mark.promise("crashes-of-uploads")
def test_nor_does_a_crash_in_another_order_change_the_end(folder: Servers) -> None:
    for words in ORDERS.keys() - set(SWEPT):
        crashed_at_each_step(folder, words, EVERYBODY if words.endswith("all late") else (*KEEPERS, "sink"))


def test_a_client_that_never_comes_back_leaves_an_entry_with_its_object_or_neither(servers: Servers) -> None:
    """And at most an empty mark. Whether there is an entry, is whether the message was sent, and first."""
    ends = set[End]()
    for words, order in ORDERS.items() if isinstance(servers.store, LocalStore) else [("plain", CALLS)]:
        _, steps = ran(servers, words, order, Faults())
        for number in of(steps, "client"):
            end, _ = ran(servers, words, order, Faults({number}, comes_back=False))
            ends.add(end)
    assert {end.entries for end in ends} == {0, 1}


@pytest.mark.promise("crashes-of-uploads")
@pytest.mark.matrix
@pytest.mark.parametrize("words", ORDERS)
def test_after_two_crashes_it_ends_as_without_one(words: str, folder: Servers) -> None:
    """The second one at any step of what the first one made of it: while somebody comes back from that, too. All pairs in all
    orders are some 70,000 runs.
    """
    expected, steps = ran(folder, words, ORDERS[words], Faults())
    for first in of(steps, *EVERYBODY):
        end, after = ran(folder, words, ORDERS[words], Faults({first}))
        assert end == expected
        for second in of(after, *EVERYBODY):
            if second > first:
                end, _ = ran(folder, words, ORDERS[words], Faults({first, second}))
                assert end == expected, (words, first, second)


@pytest.mark.matrix  # 24 s; asleep at each step in one order, the test below
def test_a_client_that_sleeps_anywhere_while_others_sweep_loses_no_object_of_an_entry(folder: Servers) -> None:
    """Without any patience: in every order; and it, or somebody else, dies at any step after that."""
    for words, order in ORDERS.items():
        _, steps = ran(folder, words, order, Faults())
        for asleep in of(steps, "client"):
            _, after = ran(folder, words, order, Faults(sleeps={asleep}))
            if words == "upload twice, worker late":
                for number in of(after[asleep:], *KEEPERS):
                    ran(folder, words, order, Faults({asleep + number}, sleeps={asleep}))
                for number in of(after[asleep:], "client"):
                    ran(folder, words, order, Faults({asleep + number}, comes_back=False, sleeps={asleep}))


@pytest.mark.promise("patient-sweeps")
def test_who_is_faster_than_the_patience_is_never_discarded_and_who_is_slower_loses_no_entry(servers: Servers) -> None:
    """The bound is between a mark and `complete`; it begins anew with `upload`."""
    _, steps = ran(servers, "plain", CALLS, Faults())
    begins, ends = steps.index("client, after put_stream"), steps.index("client, before produce")
    for number in of(steps, "client"):
        faster = Faults(sleeps={number}, sleep_s=DAY_S - 60)
        assert ran(servers, "plain", CALLS, faster, patience_s=DAY_S)[0].entries == 1
        slower = Faults(sleeps={number}, sleep_s=DAY_S + 60)
        end, _ = ran(servers, "plain", CALLS, slower, patience_s=DAY_S)
        assert end.told == (begins < number <= ends + 1), steps[number - 1]
        assert end.entries == (not end.told)
    # Nearly a patience between the first two calls, and once more before the third.
    first = steps.index("client, after mark") + 1
    _, steps = ran(servers, "plain", CALLS, Faults(sleeps={first}, sleep_s=DAY_S - 60), patience_s=DAY_S)
    both = {first, steps.index("client, after put_stream") + 1}
    end, _ = ran(servers, "plain", CALLS, Faults(sleeps=both, sleep_s=DAY_S - 60), patience_s=DAY_S)
    assert end.entries == 1


def found(servers: Servers, parts: Parts) -> str:
    """What is wrong first, when clients die and sleep at each of their steps."""
    try:
        for words, order in ORDERS.items():
            _, steps = ran(servers, words, order, Faults(), parts=parts)
            for number in of(steps, "client"):
                ran(servers, words, order, Faults({number}, comes_back=False), parts=parts)
                ran(servers, words, order, Faults(sleeps={number}), parts=parts)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.long  # 10 s
@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        (
            Parts(create=create_unmarked, upload=upload_then_mark),
            "an object is there when an entry names it, and else not",
        ),
        (Parts(sweep=delete_at_once), "an object is there when an entry names it, and else not"),
        (Parts(effect=UnmarkAfterwards), "an object is there when an entry names it, and else not"),
        (Parts(effect=UnmarkBefore), "an object is there when an entry names it, and else not"),
        (Parts(effect=NeverUnmark), "no mark is on what an entry names"),
    ],
    ids=["mark afterwards", "delete at once", "unmark afterwards", "unmark before", "never unmark"],
)
def test_each_rule_is_needed_in_the_real_thing(parts: Parts, wrong: str, folder: Servers) -> None:
    """Without it the same runs find what goes wrong."""
    assert found(folder, parts).startswith(wrong)


def test_a_fold_that_decides_twice_is_found(tmp_path: Path, dsn: str) -> None:
    """The first of complete and discard has to hold."""

    def careless(state: State | None, event: Event) -> Any:
        after, outputs = handle(state, event)
        if after is not None and event.topic == "sheets.uploads":
            after = msgspec.structs.replace(after, decided="")
        return after, outputs

    servers = Servers(LocalStore(tmp_path / "store"), dsn, replace(TOPOLOGY, handle=careless))
    try:
        assert found(servers, Parts()).startswith("an object is there when an entry names it, and else not")
    finally:
        servers.close()
