"""A bank: transfers between accounts by semi-transactions and a queue, without locks and without distributed transactions.

A transfer has two steps. Each step reads and changes a single account:

    withdraw   on the payer's account: decide, subtract the money, and put the money into the queue `bank.deposits`.
    deposit    on the payee's account: take the money out of the queue, and add the money.

The accounts may be on different partitions, and therefore on different machines. Only the first step may refuse a transfer.
The second step always applies the decision. Between the steps the money is *in flight* and is counted in the queue.

Why every transfer happens exactly once:

- The withdrawal, the payer's new state and the record in the queue are a single Kafka transaction, and so atomic.
- The queue is an input of this pipeline. The processor consumes each record exactly once, in the transaction that commits the
  record's offset.
- The payer numbers its requests from 1 (`transfer`), and payer and number identify a request. An account remembers the decided
  numbers among the WINDOW numbers up to the highest. A repeat within the window changes nothing. For an older number the
  account cannot recognize a repeat, so the request becomes a dead letter and moves no money. The bound can lose a late
  request, but never money. A number more than JUMP_MAX ahead is also a dead letter: a single wrong number could otherwise make
  all following requests too late.

The rule:

- An account is opened once and closed once, permanently. A second opening, or closing an account that is not open, changes
  nothing.
- A transfer is refused, in this order, if the payer's account is unknown, is closed, or has insufficient funds. A refusal is a
  decision and an output. The same number is never decided again, even if the account is opened later.
- A deposit to an unknown or closed account sends the money back as a deposit of the kind `return` to the payer.
- A return is never refused. A closed account accepts and shows a return, and a person must pay out the balance.

Outputs: a ledger entry for each change of an account, the refusals, and the queue. Dead letters: fields outside the schema,
amounts of 0 or less or with more than two decimals, a negative opening balance, and too old or too high request numbers.
"""

from dataclasses import dataclass, replace
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any

from onefold import Event, Output, Outputs, Rejected, Topology

# The number of remembered request numbers of an account: a bit each, in 256 characters of the state.
WINDOW = 1024
JUMP_MAX = 1_000_000
_REMEMBERED = (1 << WINDOW) - 1

_CENT, _PLACES = Decimal("0.01"), 2
# The schema's digits of an amount. An amount with more digits raises an error and is never rounded.
_EXACT = Context(prec=18, traps=[Inexact, InvalidOperation])
# For balances, which are sums of amounts.
_WIDE = Context(prec=38, traps=[Inexact, InvalidOperation])


@dataclass(frozen=True, slots=True)
class Account:
    """The state of an account, with money in cents.

    Attributes:
        entries: The number of ledger entries.
        balance: The present balance.
        opened: The opening balance; None if the account is not open yet and only has refused requests.
        closed: Whether the account is closed and refuses withdrawals.
        last: The highest decided request number.
        decided: The decided request numbers as hexadecimal digits: bit n is set if request `last` - n is decided.
    """

    entries: int = 0
    balance: int = 0
    opened: int | None = None
    closed: bool = False
    last: int = 0
    decided: str = "0"


def handle(account: Account | None, event: Event) -> tuple[Account | None, Outputs]:
    """Process an event of an account: its opening or closing, a request to pay, or arriving money."""
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
    """The first semi-transaction, the only step that may refuse. The queue completes an accepted transfer."""
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
    """The second semi-transaction: add the money, or send the money back. A return is always added, to any account."""
    cents = _positive(value.amount)
    found = account or Account()
    if value.kind == "deposit" and (found.opened is None or found.closed):
        return account, (_queued(value.payer, "return", value),)
    return _entered(found, value.account, value.kind, cents, value)


def _noted(account: Account, payer: int, number: int) -> Account | None:
    """The account after the decision of this number; None if the number is already decided.

    Raises `Rejected` for a number below 1, too far ahead, or too old for the remembered window.
    """
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
    """The account after a further ledger entry, and the entry."""
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
    """Money in flight, keyed by the receiving account and therefore in its partition."""
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
