"""The bank's rule as a table, and its laws: money is neither made nor lost, and no account has less than nothing."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.processor.apps.bank import JUMP_MAX, TOPOLOGY, WINDOW, Account, handle
from onefold.processor.core.errors import Rejected
from onefold.processor.core.values import Event
from onefold.testing import STEPS, Crash, TopologyDriver
from tests.support.crashes import crashed_at_every_hit


def change(what: str, balance: str = "0", account: int = 1) -> Event:
    return Event("bank.accounts", 0, 0, SimpleNamespace(account=account, change=what, balance=Decimal(balance)))


def transfer(number: int, amount: str, payer: int = 1, payee: int = 2) -> Event:
    value = SimpleNamespace(payer=payer, transfer=number, payee=payee, amount=Decimal(amount))
    return Event("bank.transfers", 0, 0, value)


def deposit(amount: str, account: int = 1, kind: str = "deposit", payer: int = 9) -> Event:
    value = SimpleNamespace(
        account=account, kind=kind, payer=payer, transfer=5, payee=account if kind == "deposit" else 8,
        amount=Decimal(amount),
    )  # fmt: skip
    return Event("bank.deposits", 0, 0, value)


def fold(*events: Event) -> tuple[Account | None, list[dict[str, Any]]]:
    """The state after all of them, and everything that was written, each with its topic and the key that it names."""
    state: Account | None = None
    written = []
    for event in events:
        state, outputs = handle(state, event)
        written += [{"topic": output[0], **output[1], "key": (*output, None)[2]} for output in outputs]
    return state, written


def test_a_withdrawal_queues_the_deposit_for_the_payee() -> None:
    """The line in the ledger and the money in flight come out of one event."""
    state, written = fold(change("open", "10.00"), transfer(1, "2.50"))

    assert state == Account(entries=2, balance=750, opened=1000, last=1, decided="1")
    _, entry, queued = written
    assert (entry["kind"], entry["entry"], entry["amount"], entry["balance"]) == (
        "withdraw", 2, Decimal("-2.50"), Decimal("7.50"),
    )  # fmt: skip
    assert queued == {
        "topic": "bank.deposits", "account": 2, "kind": "deposit", "payer": 1, "transfer": 1, "payee": 2,
        "amount": Decimal("2.50"), "key": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], "unknown_account"),
        ([change("open", "2.49")], "insufficient_funds"),
        ([change("open", "9"), change("close")], "closed_account"),
        ([change("open", "2.49"), change("close")], "closed_account"),
    ],
)
def test_only_a_withdrawal_refuses_and_a_refusal_moves_nothing(events: list[Event], reason: str) -> None:
    before, _ = fold(*events)
    state, written = fold(*events, transfer(1, "2.50"))

    assert state is not None
    assert state.balance == (before.balance if before else 0)
    assert [(last["topic"], last["reason"]) for last in written[len(events) :]] == [("bank.refusals", reason)]


def test_everything_that_an_account_has_can_be_withdrawn() -> None:
    state, _ = fold(change("open", "2.50"), transfer(1, "2.50"))
    assert state is not None
    assert state.balance == 0


def test_a_refused_number_is_not_decided_again() -> None:
    """Not even when the account is opened meanwhile: the client was told that this transfer would never be."""
    state, written = fold(transfer(1, "1"), change("open", "5"), transfer(1, "1"), transfer(2, "1"))
    assert [(row["topic"], row.get("transfer")) for row in written] == [
        ("bank.refusals", 1), ("bank.entries", None), ("bank.entries", 2), ("bank.deposits", 2),
    ]  # fmt: skip
    assert state is not None
    assert state.balance == 400


@given(st.permutations(range(1, 9)), st.lists(st.integers(1, 8), max_size=20))
def test_requests_in_any_order_with_any_repeats_are_each_done_once(order: list[int], repeats: list[int]) -> None:
    state, written = fold(change("open", "100"), *(transfer(number, "1") for number in [*order, *repeats, *order]))
    assert state is not None
    assert state.balance == 9200
    assert sorted(row["transfer"] for row in written if row["topic"] == "bank.deposits") == list(range(1, 9))


def test_a_request_that_may_be_a_repeat_is_not_done() -> None:
    """At the edge of what is remembered; beyond it nobody knows, and so nothing is moved."""
    opened, first = change("open", "100"), transfer(1, "1")
    state, _ = fold(opened, first, transfer(WINDOW, "1"))
    assert handle(state, first) == (state, ())
    state, _ = fold(opened, first, transfer(WINDOW + 1, "1"))
    with pytest.raises(Rejected, match="not known any more"):
        handle(state, first)
    assert handle(state, transfer(2, "1"))[1]


@pytest.mark.parametrize("number", [0, -1, JUMP_MAX + 1])
def test_a_number_that_nobody_can_count_to_is_a_dead_letter(number: int) -> None:
    with pytest.raises(Rejected, match="transfer is"):
        fold(change("open", "100"), transfer(number, "1"))


@pytest.mark.parametrize("amount", ["0", "-1", "0.001", "1e16", "NaN", "Infinity", "sNaN"])
def test_an_amount_that_is_none_is_a_dead_letter(amount: str) -> None:
    for event in (transfer(1, amount), deposit(amount)):
        with pytest.raises(Rejected, match="amount"):
            fold(change("open", "100"), event)


def test_an_opening_balance_below_nothing_is_a_dead_letter() -> None:
    with pytest.raises(Rejected, match="balance is -1"):
        fold(change("open", "-1"))


def test_an_account_is_opened_once_and_closed_once() -> None:
    state, written = fold(change("close"), change("open", "5"), change("open", "7"), change("close"), change("close"))
    assert state == Account(entries=2, balance=500, opened=500, closed=True)
    assert [row["kind"] for row in written] == ["open", "close"]
    assert handle(state, change("open", "9")) == (state, ())


@pytest.mark.parametrize("events", [[], [change("open"), change("close")], [transfer(1, "1")]])
def test_money_for_an_account_that_cannot_take_it_goes_back(events: list[Event]) -> None:
    """To the payer, under the payer's key; nothing else changes."""
    before, _ = fold(*events)
    state, written = fold(*events, deposit("3"))
    assert state == before
    sent = written[-1]
    assert (sent["topic"], sent["kind"], sent["account"], sent["key"], sent["payee"]) == (
        "bank.deposits", "return", 9, 9, 1,
    )  # fmt: skip


@pytest.mark.parametrize("events", [[change("open", "5")], [change("open", "5"), change("close")]])
def test_a_return_is_never_refused(events: list[Event]) -> None:
    """A closed account takes it, and shows it."""
    before, _ = fold(*events)
    state, written = fold(*events, deposit("3", kind="return"))
    assert state is not None
    assert before is not None
    assert (state.balance, state.closed) == (800, before.closed)
    assert (written[-1]["kind"], written[-1]["closed"]) == ("return", before.closed)


# --- the laws, on the real loop


ACCOUNTS = 6
OPENED = ACCOUNTS * Decimal(20)


def money(driver: TopologyDriver) -> tuple[dict[int, Decimal], Decimal]:
    """What a reader of committed records sees: the balances, and what was withdrawn and is not settled. No transfer is settled
    twice, whatever anybody has on the account.
    """
    balances: dict[int, Decimal] = {}
    withdrawn: Counter[tuple[int, int]] = Counter()
    settled: Counter[tuple[int, int]] = Counter()
    amounts: dict[tuple[int, int], Decimal] = {}
    for row in driver.read("bank.entries"):
        balances[row["account"]] = row["balance"]
        if row["transfer"] is not None:
            which = (row["payer"], row["transfer"])
            amounts[which] = abs(row["amount"])
            (withdrawn if row["kind"] == "withdraw" else settled)[which] += 1
    assert set((withdrawn + settled).values()) <= {1, 2}
    assert all(settled[which] <= withdrawn[which] == 1 for which in amounts)
    in_flight = sum((amounts[which] for which in withdrawn if which not in settled), Decimal(0))
    return balances, in_flight


def check(driver: TopologyDriver) -> None:
    balances, in_flight = money(driver)
    opened = sum((row["amount"] for row in driver.read("bank.entries") if row["kind"] == "open"), Decimal(0))
    assert sum(balances.values()) + in_flight == opened
    assert all(balance >= 0 for balance in balances.values())


REQUESTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("pay"), st.integers(0, ACCOUNTS), st.integers(0, ACCOUNTS + 1), st.integers(1, 12), st.integers(1, 15)
        ),
        st.tuples(st.just("close"), st.integers(0, ACCOUNTS - 1)),
        st.tuples(st.just("turn"), st.integers(0, 2)),
        st.tuples(st.just("crash"), st.sampled_from(STEPS), st.integers(1, 4)),
    ),
    max_size=40,
)  # fmt: skip


@given(REQUESTS)
def test_the_total_holds_at_every_committed_point(actions: list[tuple[Any, ...]]) -> None:
    """Three partitions take turns in any order, and crash at any step; somebody looks after each turn."""
    driver = TopologyDriver(TOPOLOGY, partitions=3)
    for account in range(ACCOUNTS):
        driver.send("bank.accounts", {"account": account, "change": "open", "balance": 20})
    for what, *given_ in actions:
        if what == "pay":
            payer, payee, number, amount = given_
            driver.send("bank.transfers", {"payer": payer, "transfer": number, "payee": payee, "amount": amount})
        elif what == "close":
            driver.send("bank.accounts", {"account": given_[0], "change": "close"})
        elif what == "crash":
            driver.crash_at(given_[0], given_[1])
        else:
            try:
                driver.task(given_[0]).turn()
            except Crash:
                driver.kill()
            check(driver)
    driver.run()
    check(driver)
    balances, in_flight = money(driver)
    assert in_flight == 0, "what was withdrawn arrives"
    assert sum(balances.values()) == OPENED


def feed(driver: TopologyDriver) -> None:
    """Three waves of transfers in a ring and astray, with repeats, a closed account and an unknown one."""
    for account in range(ACCOUNTS):
        driver.send("bank.accounts", {"account": account, "change": "open", "balance": 20})
    for wave in range(3):
        for number in range(1, 5):
            for payer in range(ACCOUNTS):
                request = {"payer": payer, "transfer": wave * 3 + number, "payee": (payer + number) % 8, "amount": 3.25}
                driver.send("bank.transfers", request, partition=payer % 3 if number == 2 else None)
        if wave == 1:
            driver.send("bank.accounts", {"account": 5, "change": "close"})
        driver.run()
    driver.stop()


@pytest.mark.long  # 9 s
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_moves_no_money(step: str) -> None:
    """Which of two transfers comes first may differ after a crash. What holds is that all money is there, once."""
    for where, driver in crashed_at_every_hit(step, partial(TopologyDriver, TOPOLOGY, partitions=3), feed):
        check(driver)
        assert money(driver)[1] == 0
        decided = Counter(
            (row["payer"], row["transfer"])
            for topic, kind in (("bank.entries", "withdraw"), ("bank.refusals", None))
            for row in driver.read(topic)
            if row.get("kind") == kind
        )
        assert decided == {(payer, number): 1 for payer in range(ACCOUNTS) for number in range(1, 11)}, where


@pytest.fixture
def broken() -> Callable[[str], TopologyDriver]:
    """The bank with a bug, fed."""

    def make(bug: str) -> TopologyDriver:
        def spoiled(account: Account | None, event: Event) -> Any:
            after, outputs = handle(account, event)
            queued = [output for output in outputs if output[0] == "bank.deposits"]
            if queued and bug == "lost":
                return after, [output for output in outputs if output not in queued]
            return after, [*outputs, *(queued if bug == "doubled" else [])]

        driver = TopologyDriver(replace(TOPOLOGY, handle=spoiled), partitions=3)
        feed(driver)
        return driver

    return make


def test_the_laws_notice_a_deposit_that_is_lost_or_doubled(broken: Callable[[str], TopologyDriver]) -> None:
    """A law that holds of everything says nothing."""
    assert money(broken("lost"))[1] > 0
    with pytest.raises(AssertionError):
        check(broken("doubled"))
