"""Verification model of `bank`: accounts, requests to pay, and the path of every cent.

The rules of the model: an account begins with the balance of its first opening, and ends with its first later closing. Payer
and number identify a request, and a request is decided once. A number 1024 or more below the payer's highest number is
inadmissible, because an earlier decision is unknown. A number more than a million above is also inadmissible. If the payer's
account is not open or has less than the amount, the request is refused. Else the amount is subtracted from the payer, and
becomes a deposit for the payee. A deposit for an account that is not open becomes a return for the payer. A return is added to
any account. Amounts are above 0 and opening balances at least 0. Both have at most two digits after the point and are below
10^16.

The generated input has some hundred accounts with transfers between them. Some requests are late or repeated, also with a
different amount. Some exceed the balance, come from an account that is not open, or go to a closed or unknown account.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from onefold.verify.decode import Inadmissible
from onefold.verify.derived_tables import Gathered, Row
from onefold.verify.expect import Column, Table, Workload
from onefold.verify.models import TrackedRows
from onefold.verify.record import Source
from onefold.workloads.shaping import Input, StreamShape, shaped

ACCOUNTS, TRANSFERS, DEPOSITS = "bank.accounts", "bank.transfers", "bank.deposits"
_KNOWN, _AHEAD = 1024, 1_000_000
_LIMIT = 10**16


def _standing(before: Row | None, line: Row) -> Row:
    """The row of an account after its newest ledger entry."""
    account, entry, *_, balance, opened, closed = line
    return before if before and before[1] > entry else (account, entry, balance, opened, closed)


def _payment(before: Row | None, line: Row) -> Row:
    """The row of a transfer after a further ledger entry of its payer or payee."""
    _, _, kind, payer, transfer, payee, amount, *_ = line
    withdrawn, deposited, returned = before[3:6] if before else (None, None, None)
    withdrawn = -amount if kind == "withdraw" else withdrawn
    deposited = amount if kind == "deposit" else deposited
    returned = amount if kind == "return" else returned
    ended = "deposited" if deposited is not None else "in flight" if returned is None else "returned"
    status = "arrived first" if withdrawn is None else ended
    return payer, transfer, payee, withdrawn, deposited, returned, status


def _request_of(line: Row) -> Row | None:
    """The payer and number of the entry's request; None without a request."""
    return None if line[4] is None else line[3:5]


_ENTRIES = Table("bank.entries", "bank.entries", ("account", "entry"))
_REFUSALS = Table("bank.refusals", "bank.refusals", ("payer", "transfer"))
_ACCOUNTS = Table(
    "bank.accounts",
    "bank.entries",
    ("account",),
    only=(
        Column("account", "long"),
        Column("entries", "long"),
        Column("balance", "decimal"),
        Column("opened", "decimal"),
        Column("closed", "boolean"),
    ),
    summed=True,
    sums=Gathered("bank.entries", key=lambda line: line[:1], row=_standing),
)
_TRANSFERS = Table(
    "bank.transfers",
    "bank.entries",
    ("payer", "transfer"),
    only=(
        Column("payer", "long"),
        Column("transfer", "long"),
        Column("payee", "long"),
        Column("withdrawn", "decimal"),
        Column("deposited", "decimal"),
        Column("returned", "decimal"),
        Column("status", "string", generated=True),
    ),
    summed=True,
    sums=Gathered("bank.entries", key=_request_of, row=_payment),
)


@dataclass
class _Account:
    """The state of an account. `numbers` are the decided requests."""

    is_open: bool = False
    was_opened: bool = False
    opened: Decimal = Decimal(0)
    balance: Decimal = Decimal(0)
    lines: int = 0
    highest: int = 0
    numbers: set[int] = field(default_factory=set)


class BankModel:
    """The expected rows for the records of the bank's topics, and the expected money in flight."""

    def __init__(self) -> None:
        self._all: dict[int, _Account] = {}
        self._on_its_way: list[tuple[str, dict[str, Any]]] = []
        self._paid: dict[tuple[Any, ...], tuple[dict[str, Any], Source]] = {}
        self._transfers: dict[tuple[Any, ...], Any] = {}
        self.rows: dict[str, dict[tuple[Any, ...], Any]] = {
            _ENTRIES.name: TrackedRows(),
            _REFUSALS.name: TrackedRows(),
            _ACCOUNTS.name: {},
            _TRANSFERS.name: self._transfers,
        }

    def key(self, value: dict[str, Any], source: Source) -> str:
        """The account, which identifies the state of a record."""
        return str(value["account"] if "account" in value else value["payer"])

    def feeds(self) -> Sequence[tuple[str, dict[str, Any]]]:
        """The expected deposit or return of the last value."""
        return self._on_its_way

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Process a record of one of the three topics."""
        self._on_its_way = []
        if source.topic == ACCOUNTS:
            return self._change(value, source)
        if source.topic == TRANSFERS:
            return self._request(value, source)
        return self._arrive(value, source)

    def settle(self) -> None:
        """Do nothing, because `apply` keeps the rows up to date."""

    def _change(self, value: dict[str, Any], source: Source) -> bool:
        balance = _admit(value["balance"])
        if balance < 0:
            raise Inadmissible("an account cannot begin with less than nothing")
        account = self._all.get(value["account"])
        if value["change"] == "close":
            if account is None or not account.is_open:
                return False
            account.is_open = False
            return self._write(value["account"], account, "close", Decimal(0), None, source)
        account = self._all.setdefault(value["account"], _Account())
        if account.was_opened:
            return False
        account.is_open = account.was_opened = True
        account.opened = balance
        return self._write(value["account"], account, "open", balance, None, source)

    def _request(self, value: dict[str, Any], source: Source) -> bool:
        amount = _above_nothing(value["amount"])
        known = self._all.get(value["payer"])
        highest, number = known.highest if known else 0, value["transfer"]
        if not max(0, highest - _KNOWN) < number <= highest + _AHEAD:
            raise Inadmissible(f"the number {number} is too far from {highest}")
        account = self._all.setdefault(value["payer"], _Account())
        if number in account.numbers:
            return False
        account.numbers.add(number)
        account.highest = max(highest, number)
        if not account.was_opened:
            return self._refuse(value, amount, "unknown_account", source)
        if not account.is_open:
            return self._refuse(value, amount, "closed_account", source)
        if account.balance < amount:
            return self._refuse(value, amount, "insufficient_funds", source)
        self._send_on("deposit", value["payee"], value, amount)
        return self._write(value["payer"], account, "withdraw", -amount, value, source)

    def _arrive(self, value: dict[str, Any], source: Source) -> bool:
        amount, who = _above_nothing(value["amount"]), value["account"]
        account = self._all.get(who)
        if value["kind"] == "return":
            account = self._all.setdefault(who, _Account())
        elif account is None or not account.is_open:
            self._send_on("return", value["payer"], value, amount)
            return True
        return self._write(who, account, value["kind"], amount, value, source)

    def _send_on(self, kind: str, to: int, value: dict[str, Any], amount: Decimal) -> None:
        which = {name: value[name] for name in ("payer", "transfer", "payee")}
        self._on_its_way = [(DEPOSITS, {"account": to, "kind": kind, **which, "amount": amount})]

    def _refuse(self, value: dict[str, Any], amount: Decimal, reason: str, source: Source) -> bool:
        which = (value["payer"], value["transfer"])
        self.rows[_REFUSALS.name][which] = (*which, value["payee"], amount, reason), source
        return True

    def _write(
        self, who: int, account: _Account, kind: str, amount: Decimal, value: dict[str, Any] | None, source: Source
    ) -> bool:
        account.lines += 1
        account.balance += amount
        closed = account.was_opened and not account.is_open
        which = (value["payer"], value["transfer"], value["payee"]) if value else (None, None, None)
        line = (who, account.lines, kind, *which, amount, account.balance, account.opened, closed)
        self.rows[_ENTRIES.name][who, account.lines] = line, source
        self.rows[_ACCOUNTS.name][who,] = _standing(None, line), source
        if value:
            before, _ = self._transfers.get(which[:2], (None, source))
            self._transfers[which[:2]] = _payment(before, line), source
        return True


def _above_nothing(amount: Decimal) -> Decimal:
    if (found := _admit(amount)) <= 0:
        raise Inadmissible("an amount must be above 0")
    return found


def _admit(amount: Decimal) -> Decimal:
    """The amount. Raises `Inadmissible` if the amount has more than two digits after the point or is too large."""
    # `abs` would fail for 1E+1000000.
    if not amount.is_finite() or not -_LIMIT < amount < _LIMIT:
        raise Inadmissible("an amount must be below 10^16")
    _, digits, exponent = amount.as_tuple()
    after = digits[max(0, len(digits) + int(exponent) + 2) :] if int(exponent) < -2 else ()
    if any(after):
        raise Inadmissible("an amount has at most two digits after the point")
    return Decimal(0) if not any(digits) else amount


WORKLOAD = Workload(
    "bank",
    (ACCOUNTS, TRANSFERS, DEPOSITS),
    (_ENTRIES, _REFUSALS, _ACCOUNTS, _TRANSFERS),
    BankModel,
    fed=(DEPOSITS,),
)

# --- input

_ACCOUNT = b'{"account": %d, "change": "%s", "balance": %d.%02d}'
_TRANSFER = b'{"payer": %d, "transfer": %d, "payee": %d, "amount": %d.%02d}'
# Few enough for repeated transfers between the same accounts, and enough for every partition.
_ACCOUNTS_MAX = 500
_EVENTS_AN_ACCOUNT = 40
_UNOPENED_SHARE, _CLOSED_SHARE, _ASTRAY_SHARE, _LARGE_SHARE = 0.05, 0.003, 0.02, 0.1


def generate(
    seed: int, count: int, *, shape: StreamShape | None = None, accounts: int | None = None
) -> Iterator[Input]:
    """Generate `count` inputs. Equal seeds give equal inputs. The queue gets no inputs, because the pipeline writes the queue."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    size = accounts or max(2, min(_ACCOUNTS_MAX, count // _EVENTS_AN_ACCOUNT))
    return shaped(rng, count, _events(rng, size), shape or StreamShape(), second_time=_another_amount)


def _events(rng: random.Random, size: int) -> Iterator[Input]:
    """Yield inputs without end. A new account replaces each closed account, so the bank keeps its size."""
    names, opened, numbers = list(range(1, size + 1)), [False] * size, [0] * size
    following, closed = size + 1, 0
    while True:
        at, chance = rng.randrange(size), rng.random()
        payer = names[at]
        if not opened[at] and chance > _UNOPENED_SHARE:
            opened[at] = True
            yield Input(ACCOUNTS, b"%d" % payer, _ACCOUNT % (payer, b"open", rng.randrange(1000), rng.randrange(100)))
        elif opened[at] and chance < _CLOSED_SHARE:
            too_late = _TRANSFER % (payer, numbers[at] + 1, names[rng.randrange(size)], 1, 0)
            closed, names[at], opened[at], numbers[at] = payer, following, False, 0
            following += 1
            yield Input(ACCOUNTS, b"%d" % payer, _ACCOUNT % (payer, b"close", 0, 0))
            yield Input(TRANSFERS, b"%d" % payer, too_late)
        else:
            numbers[at] += 1
            astray = rng.random() < _ASTRAY_SHARE
            payee = (closed or following + size) if astray else names[rng.randrange(size)]
            units = rng.randrange(2000 if rng.random() < _LARGE_SHARE else 20)
            # Never 0, because 0 is an invalid amount.
            text = _TRANSFER % (payer, numbers[at], payee, units, 1 + rng.randrange(99))
            yield Input(TRANSFERS, b"%d" % payer, text)


def _another_amount(once: Input) -> Input:
    """The same request with a different amount, because only payer and number identify a request. Openings stay unchanged."""
    head, found, _ = (once.value or b"").partition(b'"amount": ')
    return once._replace(value=head + found + b"0.01}") if found else once
