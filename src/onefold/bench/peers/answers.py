"""Check a program's output: sum and number of the trades of every leaf, against the generator's."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Leaf = tuple[str, str, str]
#: Per leaf: value in millionths, and number of trades.
Sums = dict[Leaf, tuple[int, int]]

_FIELDS = ("risk_type", "region", "trade_desk")


def sums(deltas: Iterable[Mapping[str, Any]]) -> Sums:
    """Sum up deltas. A field missing in a delta counts as null."""
    values: dict[Leaf, int] = {}
    trades: dict[Leaf, int] = {}
    for delta in deltas:
        leaf = _leaf(delta, "")
        values[leaf] = values.get(leaf, 0) + delta["value"]
        trades[leaf] = trades.get(leaf, 0) + 1
        if (before := delta.get("previous_value")) is not None:
            left = _leaf(delta, "previous_") if delta.get("previous_risk_type") is not None else leaf
            values[left] = values.get(left, 0) - before
            trades[left] = trades.get(left, 0) - 1
    return {leaf: (value, trades[leaf]) for leaf, value in values.items()}


def _leaf(delta: Mapping[str, Any], prefix: str) -> Leaf:
    risk_type, region, trade_desk = (delta[prefix + name] for name in _FIELDS)
    return risk_type, region, trade_desk


def wrong(truth: Sums, found: Sums) -> str:
    """Describe the differences between the sums in a few words; "" if equal."""
    nothing = (0, 0)
    off = [leaf for leaf in truth.keys() | found.keys() if truth.get(leaf, nothing) != found.get(leaf, nothing)]
    if not off:
        return ""
    leaf = min(off)
    told, due = found.get(leaf, nothing), truth.get(leaf, nothing)
    return f"{len(off)} leaves, such as {'/'.join(leaf)}: {told[0]} millionths of {told[1]} trades, not {due[0]} of {due[1]}"


def from_json(value: bytes | None) -> dict[str, Any]:
    """Decode a delta of the Kafka Streams application."""
    found: dict[str, Any] = json.loads(value or b"")
    return found


def from_avro(topic: str) -> Callable[[bytes | None], dict[str, Any]]:
    """Decoder of deltas in an Onefold topic, by the verifier's own rules."""
    from onefold.verify import contracts, decode

    contract = contracts.contracts()[topic]
    return lambda value: decode.decode_output(contract, value)
