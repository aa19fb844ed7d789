"""The generator of trade messages: new trades, changes, moves between leaves, repeated and late messages.

The feed also computes the expected sums, for comparison with the table. Its memory is bounded by the number of open trades, not
by the number of messages.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from onefold.workloads.shaping import Input, Shape, shaped

TOPIC = "trades.trades"

# The seed's names, and a few similar names: 4 x 3 x 4 leaves.
RISK_TYPES = ("Delta", "PV", "Rho", "Vega")
REGIONS = ("AMER", "APAC", "EMEA")
TRADE_DESKS = ("FXOptions", "FXSpot", "Rates", "Swaps")
LEAVES = tuple(product(RISK_TYPES, REGIONS, TRADE_DESKS))

_TEXT = b'{"TradeID": "%b", "Value": %b, "Version": %d, "Timestamp": %.6f, "Hierarchy": %b}'
_HIERARCHY = b'{"RiskType": "%b", "Region": "%b", "TradeDesk": "%b"}'
_ID = b"%08x-%04x-4%03x-8%03x-%012x"
# The number of trades that may still change, about 30 MB. A new trade replaces the oldest.
_OPEN_TRADES = 100_000
# The time of the seed's example. Without a clock, messages are 20 microseconds apart, at the seed's rate.
_FIRST_S, _STEP_S = 1_616_413_258.899_707_8, 0.000_02
# Values are whole cents, between minus ten thousand and nearly a million.
_CENTS_LEAST, _CENTS_SPAN = -1_000_000, 100_000_000
# Odd 64-bit numbers: multiplication modulo 2^64 is then a bijection, so ids never repeat.
_SPREAD_1, _SPREAD_2, _WORD = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95, (1 << 64) - 1


@dataclass(frozen=True)
class Mix:
    """The composition of a feed. Shares are between 0 and 1.

    Attributes:
        changes: The share of messages with a new version of an existing trade.
        moves: The share of changes that also move the trade to a new leaf.
        duplicates: The share of messages sent a second time later.
        late: The share of messages sent after the next version of their trade.
        window: The maximum distance in messages of a repeated or late message.
    """

    changes: float = 0.5
    moves: float = 0.1
    duplicates: float = 0.03
    late: float = 0.02
    window: int = 5_000


class Feed:
    """An iterable of exactly `count` messages, with their expected sums.

    Args:
        seed: Equal seeds give equal messages.
        now: The clock for the messages' timestamps, in seconds since 1970. The default clock advances with each message.
    """

    def __init__(self, seed: int, count: int, mix: Mix | None = None, now: Callable[[], float] | None = None) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._salt = seed * _SPREAD_2 & _WORD
        self._count = count
        self._mix = mix or Mix()
        self._now = now
        self._ids: list[bytes] = []
        self._states: list[tuple[int, int, int]] = []  # version, value, leaf, by the index in `_ids`
        self._begun = 0
        self._values = [0] * len(LEAVES)
        self._trades = [0] * len(LEAVES)
        self.made = 0

    def truth(self) -> dict[tuple[str, str, str], tuple[int, int]]:
        """The value in millionths and the number of trades of each leaf, after all messages made so far."""
        sums = zip(LEAVES, self._values, self._trades, strict=True)
        return {leaf: (value, trades) for leaf, value, trades in sums}

    def __iter__(self) -> Iterator[Input]:
        draw, mix, count = self._rng.random, self._mix, self._count
        waiting: deque[tuple[int, Input]] = deque()  # messages with the earliest position for sending, in order
        while self.made + len(waiting) < count:
            while waiting and waiting[0][0] <= self.made:
                self.made += 1
                yield waiting.popleft()[1]
            if self.made + len(waiting) >= count:
                break
            place = self._change(draw()) if self._ids and draw() < mix.changes else self._begin()
            message = self._message(place)
            chance = draw()
            if chance < mix.late and self.made + len(waiting) + 2 <= count:
                self._wait(waiting, message)
                self._change_at(place, draw())
                message = self._message(place)
            elif chance > 1 - mix.duplicates and self.made + len(waiting) + 2 <= count:
                self._wait(waiting, message)
            self.made += 1
            yield message
        for _, message in waiting:
            self.made += 1
            yield message

    def _wait(self, waiting: "deque[tuple[int, Input]]", message: Input) -> None:
        """Queue a message, to be sent no earlier than the previous message of the queue."""
        least = waiting[-1][0] if waiting else self.made
        waiting.append((max(least, self.made + 1 + int(self._rng.random() * self._mix.window)), message))

    def _begin(self) -> int:
        number = self._begun
        self._begun += 1
        first = number * _SPREAD_1 + self._salt & _WORD
        second = first * _SPREAD_2 & _WORD
        name = _ID % (first >> 32, first >> 16 & 0xFFFF, first & 0xFFF, first >> 12 & 0xF | second >> 60 << 4,
                      second & 0xFFFFFFFFFFFF)  # fmt: skip
        cents = _CENTS_LEAST + int(self._rng.random() * _CENTS_SPAN)
        leaf = int(self._rng.random() * len(LEAVES))
        self._values[leaf] += cents * 10_000
        self._trades[leaf] += 1
        if number < _OPEN_TRADES:
            self._ids.append(name)
            self._states.append((0, cents, leaf))
            return number
        place = number % _OPEN_TRADES
        self._ids[place], self._states[place] = name, (0, cents, leaf)
        return place

    def _change(self, chance: float) -> int:
        place = int(chance * len(self._ids))
        self._change_at(place, self._rng.random())
        return place

    def _change_at(self, place: int, chance: float) -> None:
        version, before, leaf = self._states[place]
        cents = _CENTS_LEAST + int(self._rng.random() * _CENTS_SPAN)
        self._values[leaf] -= before * 10_000
        self._trades[leaf] -= 1
        if chance < self._mix.moves:
            leaf = (leaf + 1 + int(self._rng.random() * (len(LEAVES) - 1))) % len(LEAVES)
        self._values[leaf] += cents * 10_000
        self._trades[leaf] += 1
        self._states[place] = (version + 1, cents, leaf)

    def _message(self, place: int) -> Input:
        version, cents, leaf = self._states[place]
        name = self._ids[place]
        at = self._now() if self._now else _FIRST_S + self.made * _STEP_S
        worth = b"%d.%02d" % divmod(cents, 100) if cents >= 0 else b"-%d.%02d" % divmod(-cents, 100)
        return Input(TOPIC, name, _TEXT % (name, worth, version, at, _HIERARCHIES[leaf]))


_HIERARCHIES = [_HIERARCHY % tuple(name.encode() for name in leaf) for leaf in LEAVES]


def generate(seed: int, count: int, *, shape: Shape | None = None) -> Iterator[Input]:
    """Generate `count` inputs. Equal seeds give equal inputs. `shape` replaces the feed's own repeated and late messages."""
    if shape is None:
        return iter(Feed(seed, count))
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    return shaped(rng, count, iter(Feed(seed, count, Mix(duplicates=0, late=0))), shape)


def live(seed: int, count: int) -> Iterator[Input]:
    """Generate `count` inputs with the present time in each message, for the measurement of latency."""
    return iter(Feed(seed, count, now=time.time))
