"""Trade risk: the present value of each trade, and the change of the sums by each new version of a trade.

A message has the risk value of a trade, the version of the value, and the trade's leaf in the hierarchy (risk type, region,
trade desk). Messages may be repeated or late.

The rule:

- A trade's first message is accepted with any version. Later messages need a higher version than the last accepted version. A
  repeated or late message changes nothing, because a newer version has already replaced its value, and is counted.
- An accepted message adds its value to its leaf. The value of the trade's previous version is subtracted from the previous
  leaf, which may differ. The sum of all deltas of a leaf is therefore the sum of its trades' values.
- All changes of a trade within a transaction become a single delta, from the state before the transaction to the state after.
  A leaf that a trade entered and left within the same transaction gets no delta.
- Values are decimals of up to 12 digits before the point and 6 after the point, kept as whole millionths. Only the input's
  timestamp is binary floating point, and the state has the timestamp in whole microseconds.

Outputs of a transaction: a delta for every changed trade. Dead letters: fields outside the schema, values and timestamps out of
range, empty or too long texts.
"""

from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from sys import intern
from typing import Any

from msgspec import Struct

from onefold import Event, Outputs, Rejected, Topology

# 2^53 microseconds, in the year 2255: a double counts microseconds exactly up to this time.
TIMESTAMP_MAX = 9_007_199_254
# A UUID has 36 characters. The bound keeps keys and index entries small.
TRADE_ID_CHARACTERS_MAX = 200
NAME_CHARACTERS_MAX = 100

_MILLIONTH, _PLACES = Decimal("0.000001"), Decimal(6)
# Eighteen digits, six of them after the point. A value with more digits raises an error and is never rounded.
_EXACT = Context(prec=18, traps=[Inexact, InvalidOperation])


# Delta and Trade contain only numbers and texts, and so no reference cycles. Untracked by the garbage collector (gc=False),
# each object needs less memory.
class Delta(Struct, gc=False):
    """The fields of `trades.deltas`: the net change of a trade within a transaction.

    The fields of the previous leaf are None unless the trade left its leaf.
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
    """The last accepted version of a trade. `value` is in millionths and `traded_at` in microseconds since 1970.

    `changes` is the number of accepted versions.
    """

    version: int
    value: int
    risk_type: str
    region: str
    trade_desk: str
    traded_at: int
    changes: int = 1


def handle(trade: Trade | None, event: Event) -> tuple[Trade | None, Outputs]:
    """Accept only higher versions; a repeat changes nothing. `emit_change` makes the output of a change."""
    message = event.value
    leaf = message.Hierarchy
    value = _millionths(message.Value)
    _admit(message, leaf)
    traded_at = round(message.Timestamp * 1_000_000)
    version = message.Version
    if trade is not None and version <= trade.version:
        return trade, ()
    changes = 1 if trade is None else trade.changes + 1
    # With many trades and few names, interned names save memory.
    risk_type, region, trade_desk = intern(leaf.RiskType), intern(leaf.Region), intern(leaf.TradeDesk)
    return Trade(version, value, risk_type, region, trade_desk, traded_at, changes), ()


def emit_change(trade_id: str, before: Trade | None, after: Trade) -> Outputs:
    """The delta of a changed trade. Trades are never deleted, so `after` always exists."""
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
