"""A bank: funds move between accounts by semi-transactions and a queue, without a lock and without a distributed transaction.

A transfer is two steps, each of which knows one account only:

    withdraw   on the payer's account: decide, take the money off, and put it into the queue `bank.deposits`
    deposit    on the payee's account: take it out of the queue, and add it

The accounts may be on different partitions, and so on different machines. Only the first step may refuse. The second one
cannot: it applies what is decided, sooner or later. In between the money is *in flight*, in the queue, and counted there.

Why every transfer happens exactly once:

- Withdrawal, the payer's new state and the record in the queue are one Kafka transaction: all of it is there, or nothing.
- The record in the queue is an input of this pipeline: it is folded once, in the transaction that moves past it.
- A request that is sent twice is one request. It is known by its payer and its number (`transfer`): the payer counts its
  requests from 1 on. An account remembers which of the WINDOW numbers up to the highest one were decided. So a repeat within
  the window changes nothing, and one that is older cannot be told from a repeat: it becomes a dead letter, and moves nothing.
  The bound costs a late request its chance; it never costs anybody money. A number that jumps more than JUMP_MAX ahead is a
  dead letter as well, or one slip would make all others late.

The rule:

- An account is opened once and closed once, for ever. Opening it again, and closing what is not open, change nothing.
- A transfer is refused, in this order, from an account that is unknown, from one that is closed, and from one that has less.
  A refusal is a decision: it is an output, and the same number is not decided again, also when the account is opened later.
- A deposit for an account that is unknown or closed sends the money back: a deposit of the kind `return` for the payer.
- A return is never refused. A closed account takes it, and shows it: somebody has to pay that balance out by hand.

Outputs: a ledger entry for each change of an account, the refusals, and the queue. Dead letters: fields that break the
contract, amounts that are not above 0 or have more than two digits after the point, a negative opening balance, and the numbers
that are too late or too far ahead.
"""

from dataclasses import dataclass, replace
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any

from onefold import Event, Output, Outputs, Rejected, Topology

# How many of an account's latest request numbers are remembered: a bit each, in 256 characters of the state.
WINDOW = 1024
JUMP_MAX = 1_000_000
_REMEMBERED = (1 << WINDOW) - 1

_CENT, _PLACES = Decimal("0.01"), 2
# As many digits as the contracts have for an amount: what does not fit, or would have to be rounded, is an error.
_EXACT = Context(prec=18, traps=[Inexact, InvalidOperation])
# For balances, which are sums of amounts.
_WIDE = Context(prec=38, traps=[Inexact, InvalidOperation])


@dataclass(frozen=True, slots=True)
class Account:
    """How an account stands. Money in cents.

    Attributes:
        entries: lines in its ledger.
        balance: what it has.
        opened: with which it was opened; None: it was not, and all that is known of it are refused requests.
        closed: whether nothing can be withdrawn from it any more.
        last: the highest number of a request that was decided.
        decided: in hexadecimal digits; the bit of value 2^n says that the request `last` - n was decided.
    """

    entries: int = 0
    balance: int = 0
    opened: int | None = None
    closed: bool = False
    last: int = 0
    decided: str = "0"


def handle(account: Account | None, event: Event) -> tuple[Account | None, Outputs]:
    """Three topics come to an account: its own opening and closing, requests to pay, and money that arrives."""
    if event.topic == "bank.transfers":
        return _withdraw(account or Account(), event.value)
    if event.topic == "bank.deposits":
        return _deposit(account, event.value)
    return _open_or_close(account, event.value)


def _open_or_close(account: Account | None, value: Any) -> tuple[Account | None, Outputs]:
    cents = _cents(value.balance)
    if cents < 0:
        raise Rejected(f"balance is {value.balance}; it must not be negative")
    if value.change == "open":
        if account is not None and account.opened is not None:
            return account, ()
        found = account or Account()
        return _entered(replace(found, opened=cents), value.account, "open", cents, None)
    if account is None or account.opened is None or account.closed:
        return account, ()
    return _entered(replace(account, closed=True), value.account, "close", 0, None)


def _withdraw(account: Account, value: Any) -> tuple[Account, Outputs]:
    """The first semi-transaction, and the only step that may refuse. What it begins, the queue completes."""
    cents = _positive(value.amount)
    noted = _noted(account, value.payer, value.transfer)
    if noted is None:
        return account, ()
    if reason := _refusal(account, cents):
        refused = {"payer": value.payer, "transfer": value.transfer, "payee": value.payee, "amount": _money(cents)}
        return noted, (("bank.refusals", {**refused, "reason": reason}),)
    paid, entry = _entered(noted, value.payer, "withdraw", -cents, value)
    return paid, (*entry, _queued(value.payee, "deposit", value))


def _refusal(account: Account, cents: int) -> str:
    if account.opened is None:
        return "unknown_account"
    if account.closed:
        return "closed_account"
    return "insufficient_funds" if account.balance < cents else ""


def _deposit(account: Account | None, value: Any) -> tuple[Account | None, Outputs]:
    """The second semi-transaction: it adds the money, or sends it back. A return it always adds, whatever the account is."""
    cents = _positive(value.amount)
    found = account or Account()
    if value.kind == "deposit" and (found.opened is None or found.closed):
        return account, (_queued(value.payer, "return", value),)
    return _entered(found, value.account, value.kind, cents, value)


def _noted(account: Account, payer: int, number: int) -> Account | None:
    """The account after this number is decided; None when it was decided before. Raises `Rejected` when that cannot be told."""
    ahead = number - account.last
    if number < 1 or ahead > JUMP_MAX:
        raise Rejected(f"transfer is {number}; it must be 1 to {account.last + JUMP_MAX}")
    if ahead <= -WINDOW:
        raise Rejected(
            f"transfer {number} of account {payer} comes after {account.last}: {WINDOW} numbers are remembered, "
            f"and whether this one is a repeat is not known any more"
        )
    decided = int(account.decided, 16)
    if ahead > 0:
        shifted = (decided << ahead) & _REMEMBERED if ahead < WINDOW else 0
        return replace(account, last=number, decided=f"{shifted | 1:x}")
    bit = 1 << -ahead
    return None if decided & bit else replace(account, decided=f"{decided | bit:x}")


def _entered(account: Account, number: int, kind: str, cents: int, value: Any) -> tuple[Account, Outputs]:
    """The account with one more line in its ledger, and that line."""
    after = replace(account, entries=account.entries + 1, balance=account.balance + cents)
    fields = {
        "account": number,
        "entry": after.entries,
        "kind": kind,
        "payer": value and value.payer,
        "transfer": value and value.transfer,
        "payee": value and value.payee,
        "amount": _money(cents),
        "balance": _money(after.balance),
        "opened": _money(after.opened or 0),
        "closed": after.closed,
    }
    return after, (("bank.entries", fields),)


def _queued(account: int, kind: str, value: Any) -> Output:
    """Money in flight. Its key is the account that takes it, whose partition it goes to."""
    transfer = {"payer": value.payer, "transfer": value.transfer, "payee": value.payee}
    amount = _money(_cents(value.amount))
    return Output("bank.deposits", {"account": account, "kind": kind, **transfer, "amount": amount}, key=account)


def _positive(amount: Decimal) -> int:
    cents = _cents(amount)
    if cents <= 0:
        raise Rejected(f"amount is {amount}; it must be above 0")
    return cents


def _cents(amount: Decimal) -> int:
    try:
        return int(_EXACT.quantize(amount, _CENT).scaleb(_PLACES))
    except (DecimalException, ValueError):  # ValueError: not a number
        raise Rejected("an amount must be a decimal below 10^16 with at most 2 digits after the point") from None


def _money(cents: int) -> Decimal:
    return _WIDE.scaleb(Decimal(cents), -_PLACES)


TOPOLOGY = Topology(
    name="bank",
    inputs=("bank.accounts", "bank.transfers", "bank.deposits"),
    key={
        "bank.accounts": lambda change: change.account,
        "bank.transfers": lambda transfer: transfer.payer,
        "bank.deposits": lambda deposit: deposit.account,
    },
    state=Account,
    handle=handle,
    outputs={"bank.entries": None, "bank.refusals": None, "bank.deposits": None},
)
