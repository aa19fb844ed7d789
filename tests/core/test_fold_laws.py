"""The law of the fold: in batches, one by one, and by a reference that knows no batches, the same comes out."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.processor.core.errors import Rejected
from onefold.processor.core.fold import TICK_MS_MAX, fold
from onefold.processor.core.topology import Tick, Topology
from onefold.processor.core.values import Event, Output, Outputs, Record
from onefold.processor.runtime.state_store import MemoryStateStore
from onefold.processor.testing.partition import partition_of

KEYS = "abcd"
#: In every tier: a tenth of the usual number would miss what needs several records of one key.
EXAMPLES = 300
TRACE = (("trace", b"1"),)


@dataclass(frozen=True)
class Total:
    amount: int


def told(name: str, amount: int) -> Outputs:
    """One output of each shape, to a log and to two tables; the last two are of one row."""
    return [
        ("laws.log", {"name": name, "n": amount}),
        Output("laws.log", {"name": name, "n": -amount}, key=amount, headers=TRACE),
        ("laws.row", SimpleNamespace(name=name, n=amount)),
        Output("laws.pairs", {"name": name, "n": amount % 3, "of": amount}, key="all"),
        ("laws.pairs", {"name": name, "n": amount % 3, "of": -amount}),
    ]


def handle(total: Total | None, event: Event) -> tuple[Total | None, Outputs]:
    """Does what the event says. A tombstone forgets the key."""
    what, n = (event.value.what, event.value.n) if event.value is not None else ("forget", 0)
    amount = (total.amount if total else 0) + n
    if what == "refuse":
        raise Rejected("refused")
    if what == "forget":
        return None, []
    if what == "tell":
        return total, told(str(event.offset), amount)
    return (total, []) if what == "nothing" else (Total(amount), told(event.topic, amount) if what == "add" else [])


def on_tick(key: str, total: Total, at_ms: int) -> tuple[Total | None, Outputs]:
    if total.amount == 5:
        raise Rejected("five is not told")
    if total.amount % 3 == 0:
        return total, []
    return (None if total.amount > 5 else Total(total.amount + 1)), told(key, at_ms)


def difference(key: str, before: Total | None, after: Total | None) -> Outputs:
    by = (after.amount if after else 0) - (before.amount if before else 0)
    return [("laws.differences", {"name": key, "by": by})]


OUTPUTS: dict[str, tuple[str, ...] | None] = {
    "laws.log": None, "laws.row": ("name",), "laws.pairs": ("name", "n"), "laws.differences": None,
}  # fmt: skip
TICKS = st.sampled_from(
    [None, Tick(1, on_tick), Tick(1, on_tick, due=lambda total: None if total.amount < 0 else total.amount * 1000)]
)
TOPOLOGIES = st.builds(
    partial(Topology, "laws", key=lambda value: value.key, state=Total, handle=handle, outputs=OUTPUTS),
    inputs=st.sampled_from([("laws.in",), ("laws.in", "laws.more")]),
    emit_change=st.sampled_from([None, difference]),
    tick=TICKS,
    tombstones=st.sampled_from(["ignore", "event"]),  # "reject" is the codec's
)
WHAT = ("add", "add", "quietly", "nothing", "tell", "forget", "refuse")


def history(topology: Topology, dice: random.Random, many: int) -> list[Record]:
    """Records of one task; some belong elsewhere, some are none, and ticks come late or twice."""
    ends, made, now = Counter[str](), list[Record](), 1000
    odd = (None, b"junk", b"-1", b"%d" % TICK_MS_MAX, b"%d" % (TICK_MS_MAX + 1))
    for _ in range(many):
        topic = dice.choice(topology.reads)
        now += dice.choice([-1000, 0, 1000, 1000])
        say = {"key": dice.choice(KEYS), "what": dice.choice(WHAT), "n": dice.randint(-3, 4)}
        value: bytes | None
        if topic == topology.ticks:
            value = dice.choice(odd[1:]) if dice.random() < 0.05 else b"%d" % now
        else:
            value = dice.choice(odd[:2]) if dice.random() < 0.15 else json.dumps(say).encode()
        key = dice.choice([None, b"\xff", *(name.encode() for name in KEYS)])
        made.append(Record(topic, 0, ends[topic], key, value))
        ends[topic] += dice.randint(1, 3)
    return made


def decode(record: Record) -> Any:
    if record.value is None:
        return None
    if record.value == b"junk":
        raise Rejected("junk")
    found = json.loads(record.value)
    return SimpleNamespace(at_ms=found) if isinstance(found, int) else SimpleNamespace(**found)


@dataclass
class Outcome:
    """All that a history comes to, whatever its batches were; but for `differences`, which are of one batch each."""

    states: dict[str, Any] = field(default_factory=dict)
    ticked_ms: int = 0
    fates: list[tuple[Any, ...]] = field(default_factory=list)
    log: list[tuple[Any, ...]] = field(default_factory=list)
    tables: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    differences: list[tuple[Any, ...]] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)

    def add(self, topic: str, key: Any, fields: Any, record: Record, headers: Any) -> None:
        """An output, to where it belongs."""
        if topic == "laws.differences":
            self.differences.append((key, fields["name"], fields["by"], record))
        elif (names := OUTPUTS[topic]) is None:
            self.log.append((key, fields, record, headers))
        else:
            row = fields if isinstance(fields, Mapping) else vars(fields)
            self.tables[topic, *(row[name] for name in names)] = (key, row, record, headers)


def reference(topology: Topology, batches: Iterable[Sequence[Record]], partitions: int) -> Outcome:
    """One record after the other, and nothing put off until a transaction ends but the differences."""
    out = Outcome()
    for batch in batches:
        before, touched = dict(out.states), dict[str, Record]()
        for record in batch:
            out.offsets[record.topic] = record.offset + 1
            try:
                given = asked(topology, out, record, partitions)
            except Rejected:
                out.fates.append(("dead", record))
                continue
            if isinstance(given, tuple):
                out.fates.append(given)
                continue
            changed = {key: new for key, new in given.items() if new[0] is not out.states.get(key) or new[1]}
            out.fates.append(("accepted" if changed else "ignored",))
            for key, (state, outputs) in changed.items():
                touched[key] = record
                out.states = {**out.states, key: state} if state else {k: s for k, s in out.states.items() if k != key}
                for topic, fields, named, headers in map(whole, outputs):
                    out.add(topic, key if named is None else str(named), fields, record, headers)
        for key, record in touched.items() if topology.emit_change is not None else ():
            if before.get(key) is not out.states.get(key):
                for topic, fields, *_ in difference(key, before.get(key), out.states.get(key)):
                    out.add(topic, key, fields, record, ())
    return out


def whole(output: Sequence[Any]) -> Output:
    return Output(*output)


def asked(topology: Topology, out: Outcome, record: Record, partitions: int) -> Any:
    """What the handler says to a record, by key; or what becomes of the record without it."""
    value = decode(record)
    if topology.tick is not None and record.topic == topology.ticks:
        if not 0 <= value.at_ms <= TICK_MS_MAX:
            raise Rejected("no time")
        if value.at_ms <= out.ticked_ms:
            return ("ignored",)
        due = topology.tick.due or (lambda total: 0)
        found = {
            key: on_tick(key, total, value.at_ms)
            for key, total in sorted(out.states.items())
            if (from_ms := due(total)) is not None and from_ms <= value.at_ms
        }
        out.ticked_ms = value.at_ms
        return found
    if value is None and topology.tombstones == "ignore":
        return ("ignored",)
    if value is None and record.key in (None, b"\xff"):
        raise Rejected("no key")
    key = value.key if value is not None else (record.key or b"").decode()
    if key not in out.states and partition_of(key, partitions) != record.partition:
        return ("misrouted", record, key, partition_of(key, partitions))
    return {key: handle(out.states.get(key), Event(record.topic, 0, record.offset, value, None, record.key))}


def folded(topology: Topology, batches: Iterable[Sequence[Record]], partitions: int) -> tuple[Outcome, list[Any]]:
    """By the fold, each batch from where the one before has left the store; the outcome, and the fates as it has them."""
    out, store, fates = Outcome(), MemoryStateStore(), Counter[str]()
    aside: list[Any] = []
    for batch in batches:
        stored = store.snapshot()
        one = fold(topology, store, batch, decode, partial(partition_of, partitions=partitions), out.ticked_ms)
        assert store.snapshot() == stored, "a fold changes nothing"
        store.apply(one.changes)
        for topic, key, fields, record, headers in one.outputs:
            out.add(topic, key, fields, record, headers)
        aside += [("misrouted", *copy) for copy in one.misrouted] + [
            ("dead", letter.record) for letter in one.dead_letters
        ]
        fates.update(one.counts._asdict())
        out.offsets |= one.offsets_next
        out.ticked_ms = one.ticked_ms
    out.states = store.snapshot()
    return out, [+fates, sorted(map(str, aside))]


def as_counted(fates: list[tuple[Any, ...]]) -> list[Any]:
    named = {"misrouted": "repartitioned"}
    aside = [fate for fate in fates if len(fate) > 1]
    return [Counter(named.get(fate[0], fate[0]) for fate in fates), sorted(map(str, aside))]


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_batches_and_single_records_come_to_what_the_reference_says(data: st.DataObject) -> None:
    """For any topology, records, cut and number of partitions."""
    topology = data.draw(TOPOLOGIES)
    # Not drawn one by one: what is drawn is mostly simple, and the laws are about what several records do to one key.
    dice = random.Random(data.draw(st.integers(0, 2**32)))
    records = history(topology, dice, data.draw(st.sampled_from([40, 16, 4, 1])))
    partitions = data.draw(st.sampled_from([1, 1, 3]))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(records)), max_size=4)))
    batches = [records[start:end] for start, end in zip([0, *cuts], [*cuts, len(records)], strict=True)]
    for parts in (batches, [[record] for record in records]):
        wanted = reference(topology, parts, partitions)
        found, fates = folded(topology, parts, partitions)
        assert fates == as_counted(wanted.fates)
        wanted.fates = []
        assert found == wanted
