"""Trade risk: what each trade is worth now, and by how much every new version of it changes the sums.

A message says the risk value of a trade, the version of that statement, and the leaf of the hierarchy (risk type,
region, trade desk) that it counts for. Messages come twice, and late.

The rule:

- A trade's first message is accepted whatever its version; after that only a higher version than the last accepted one.
  A repeat or a late one changes nothing (and is counted): its value was replaced before it arrived.
- An accepted message adds its value to its leaf. If the trade had a version before, that one's value leaves the leaf
  that it was in, which may be another leaf. So the sum of all deltas of a leaf is the sum of its trades' values.
- What a trade's changes within one transaction come to is one delta: from how it was before to how it is after. A leaf
  that a trade came to and left within a transaction hears nothing of it.
- Values are decimals of up to 12 digits before the point and 6 after it; inside they are whole millionths. No number
  here is ever binary floating point but the timestamp, which is only carried along, in microseconds.

Outputs of a transaction: one delta for every trade that changed. Dead letters: fields that break the contract, values
and timestamps out of range, texts that are empty or too long.
"""

from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from sys import intern
from typing import Any

from msgspec import Struct

from onefold import Event, Outputs, Rejected, Topology

# 2^53 microseconds, the year 2255: up to here a double counts microseconds exactly.
TIMESTAMP_MAX = 9_007_199_254
# A UUID has 36; the bound keeps keys and index entries small.
TRADE_ID_CHARACTERS_MAX = 200
NAME_CHARACTERS_MAX = 100

_MILLIONTH, _PLACES = Decimal("0.000001"), Decimal(6)
# Eighteen digits, six of them after the point: whatever does not fit, or would have to be rounded, is an error.
_EXACT = Context(prec=18, traps=[Inexact, InvalidOperation])


# Delta and Trade hold numbers and texts only, so they can be in no cycle: out of the garbage collector's sight each is 16
# bytes smaller.
class Delta(Struct, gc=False):
    """The fields of `trades.deltas`: what a trade's changes within a transaction come to. A leaf is named as the previous
    one only when the trade left it.
    """

    trade_id: str
    version: int
    traded_at: int
    messages: int
    risk_type: str
    region: str
    trade_desk: str
    value: int
    previous_value: int | None
    previous_risk_type: str | None
    previous_region: str | None
    previous_trade_desk: str | None


class Trade(Struct, gc=False):
    """The last accepted version of a trade. `value` in millionths, `traded_at` in microseconds; `changes` counts the
    versions that were accepted.
    """

    version: int
    value: int
    risk_type: str
    region: str
    trade_desk: str
    traded_at: int
    changes: int = 1


def handle(trade: Trade | None, event: Event) -> tuple[Trade | None, Outputs]:
    """Take only versions that move forward; a repeat changes nothing. What is to be told of a change, `emit_change` tells."""
    message = event.value
    leaf = message.Hierarchy
    value = _millionths(message.Value)
    _admit(message, leaf)
    traded_at = round(message.Timestamp * 1_000_000)
    version = message.Version
    if trade is not None and version <= trade.version:
        return trade, ()
    changes = 1 if trade is None else trade.changes + 1
    # There are many trades and few names: states share theirs.
    risk_type, region, trade_desk = intern(leaf.RiskType), intern(leaf.Region), intern(leaf.TradeDesk)
    return Trade(version, value, risk_type, region, trade_desk, traded_at, changes), ()


def emit_change(trade_id: str, before: Trade | None, after: Trade) -> Outputs:
    """The delta of a trade that changed. Trades are never forgotten, so there is always an after."""
    risk_type, region, trade_desk = after.risk_type, after.region, after.trade_desk
    messages = after.changes
    previous_value = previous_risk_type = previous_region = previous_trade_desk = None
    if before is not None:
        messages -= before.changes
        previous_value = before.value
        if before.trade_desk != trade_desk or before.region != region or before.risk_type != risk_type:
            previous_risk_type = before.risk_type
            previous_region = before.region
            previous_trade_desk = before.trade_desk
    delta = Delta(
        trade_id, after.version, after.traded_at, messages, risk_type, region, trade_desk, after.value,
        previous_value, previous_risk_type, previous_region, previous_trade_desk,
    )  # fmt: skip
    return (("trades.deltas", delta),)


def _admit(message: Any, leaf: Any) -> None:
    if message.Version < 0:
        raise Rejected(f"Version is {message.Version}; it must not be negative")
    if not 0 <= message.Timestamp <= TIMESTAMP_MAX:
        raise Rejected(f"Timestamp is {message.Timestamp}; it must be 0 to {TIMESTAMP_MAX} seconds")
    if not 0 < len(message.TradeID) <= TRADE_ID_CHARACTERS_MAX:
        raise Rejected(f"TradeID has {len(message.TradeID)} characters; it must have 1 to {TRADE_ID_CHARACTERS_MAX}")
    if not (
        0 < len(leaf.RiskType) <= NAME_CHARACTERS_MAX
        and 0 < len(leaf.Region) <= NAME_CHARACTERS_MAX
        and 0 < len(leaf.TradeDesk) <= NAME_CHARACTERS_MAX
    ):
        raise Rejected(f"RiskType, Region and TradeDesk must have 1 to {NAME_CHARACTERS_MAX} characters each")


def _millionths(value: Decimal) -> int:
    try:
        return int(_EXACT.quantize(value, _MILLIONTH).scaleb(_PLACES))
    except (DecimalException, ValueError):  # ValueError: not a number
        raise Rejected("Value must be a decimal below 10^12 with at most 6 digits after the point") from None


TOPOLOGY = Topology(
    name="trades",
    inputs=("trades.trades",),
    key=lambda message: message.TradeID,
    state=Trade,
    handle=handle,
    outputs={"trades.deltas": None},
    emit_change=emit_change,
)
