"""The fold: what one batch of records becomes, as a value."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused, Rejected
from onefold.processor.core.fold import fold
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Event, Output, Outputs, Record
from onefold.processor.runtime.state_store import MemoryStateStore
from onefold.processor.testing.partition import partition_of
from tests.support.coded import raises

HERE = partial(partition_of, partitions=1)


@dataclass
class Total:
    amount: int


def add(total: Total | None, event: Event) -> tuple[Total | None, Outputs]:
    """A pipeline for tests: adds; 0 changes nothing, 13 is refused, a negative number forgets the key."""
    name, amount = event.value
    if amount == 0:
        return total, []
    if amount == 13:
        raise Rejected("thirteen is not taken")
    if amount < 0:
        return None, []
    new = Total((total.amount if total else 0) + amount)
    return new, [("sums.totals", {"name": name, "total": new.amount}), ("sums.every", {"name": name, "amount": amount})]


SUMS = Topology(
    "sums", ("sums.in",), lambda value: value[0], Total, add, {"sums.totals": ("name",), "sums.every": None}
)


def decode(record: Record) -> Any:
    if record.value == b"junk":
        raise Rejected("not a number")
    return (record.key or b"").decode(), int(record.value or b"")


def records(*pairs: tuple[str, bytes], start: int = 0) -> list[Record]:
    return [Record("sums.in", 0, start + at, key.encode(), value) for at, (key, value) in enumerate(pairs)]


def folded(*pairs: tuple[str, bytes], store: MemoryStateStore | None = None, partitions: int = 1) -> Any:
    return fold(
        SUMS, store or MemoryStateStore(), records(*pairs), decode, partial(partition_of, partitions=partitions)
    )


def test_later_records_of_a_batch_see_the_state_of_earlier_ones() -> None:
    """The store is not touched, and still the second record adds to the first."""
    store = MemoryStateStore({"a": Total(5)})

    transaction = folded(("a", b"1"), ("a", b"2"), store=store)

    assert Total(8) == transaction.changes["a"][0]
    assert Total(5) == store.get("a")


def test_where_the_latest_row_wins_only_the_latest_is_produced() -> None:
    """A row that changed twice is one record; a topic where every record counts gets both."""
    transaction = folded(("a", b"1"), ("b", b"7"), ("a", b"2"))

    assert [(v["name"], v["amount"]) for t, _, v, _, _ in transaction.outputs if t == "sums.every"] == [
        ("a", 1),
        ("b", 7),
        ("a", 2),
    ]
    assert {v["name"]: v["total"] for t, _, v, _, _ in transaction.outputs if t == "sums.totals"} == {"a": 3, "b": 7}
    assert len(transaction.outputs) == 5


def test_an_output_names_the_record_that_caused_it() -> None:
    """The latest row is caused by the latest record."""
    transaction = folded(("a", b"1"), ("a", b"2"))

    assert [cause.source for topic, _, _, cause, _ in transaction.outputs if topic == "sums.totals"] == [b"sums.in/0/1"]


def test_refusals_are_dead_letters_and_leave_no_trace() -> None:
    """What cannot be decoded and what the handler refuses: a reason each, and the records around them count."""
    transaction = folded(("a", b"1"), ("a", b"junk"), ("a", b"13"), ("a", b"2"))

    assert [letter.reason for letter in transaction.dead_letters] == ["not a number", "thirteen is not taken"]
    assert Total(3) == transaction.changes["a"][0]
    assert transaction.counts._asdict() == {"accepted": 2, "ignored": 0, "repartitioned": 0, "dead": 2}


def test_a_record_that_changes_nothing_is_counted() -> None:
    """Ignored is a number, not a silence."""
    transaction = folded(("a", b"0"), ("a", b"1"))

    assert transaction.counts._asdict() == {"accepted": 1, "ignored": 1, "repartitioned": 0, "dead": 0}


def test_outputs_count_also_when_the_state_stays_as_it_is() -> None:
    """A handler may answer without remembering anything."""
    topology = Topology(
        "sums", ("sums.in",), SUMS.key, Total, lambda state, event: (state, [("sums.every", {"n": 1})]), SUMS.outputs
    )
    store = MemoryStateStore({"a": Total(5)})
    transaction = fold(topology, store, records(("a", b"1"), ("b", b"2")), decode, HERE)

    assert [(topic, key) for topic, key, _, _, _ in transaction.outputs] == [("sums.every", "a"), ("sums.every", "b")]
    assert transaction.counts.accepted == 2
    assert transaction.changes["a"][0] == Total(5)


def test_the_progress_is_behind_the_last_record() -> None:
    """Also when that record was refused."""
    assert folded(("a", b"1"), ("a", b"1"), ("a", b"junk")).offsets_next == {"sums.in": 3}


@pytest.mark.parametrize("make", [dict, OrderedDict, SimpleNamespace])
def test_the_fields_of_a_row_are_in_a_dict_or_in_an_object(make: Callable[..., Any]) -> None:
    """Of the latest row, which is found by its fields, as of every other one."""

    def handle(total: Total | None, event: Event) -> tuple[Total | None, Outputs]:
        total, outputs = add(total, event)
        return total, [(output[0], make(**output[1])) for output in outputs]

    topology = Topology("sums", ("sums.in",), SUMS.key, Total, handle, SUMS.outputs)
    outputs = fold(topology, MemoryStateStore(), records(("a", b"1"), ("b", b"2"), ("a", b"3")), decode, HERE).outputs

    totals = [fields for topic, _, fields, _, _ in outputs if topic == "sums.totals"]
    assert sorted(map(str, totals)) == sorted(map(str, [make(name="a", total=4), make(name="b", total=2)]))


def test_no_state_forgets_the_key() -> None:
    """And a record after that begins anew."""
    store = MemoryStateStore({"a": Total(5), "b": Total(6)})

    transaction = folded(("a", b"-1"), ("b", b"-1"), ("b", b"2"), store=store)
    store.apply(transaction.changes)

    assert {"b": Total(2)} == store.snapshot()


def test_a_misrouted_record_is_repartitioned_and_not_folded() -> None:
    """A key without a state here is sent where it belongs."""
    stranger = next(key for key in "abcdefgh" if partition_of(key, 3) != 0)
    resident = next(key for key in "abcdefgh" if partition_of(key, 3) == 0)

    transaction = folded((stranger, b"1"), (resident, b"1"), partitions=3)

    assert [(stranger, partition_of(stranger, 3))] == [(one.key, one.partition) for one in transaction.misrouted]
    assert [resident] == list(transaction.changes)
    assert transaction.counts._asdict() == {"accepted": 1, "ignored": 0, "repartitioned": 1, "dead": 0}


def test_an_output_to_a_topic_that_is_not_declared_is_a_bug() -> None:
    """It crashes; it is not a dead letter."""
    undeclared = Topology("sums", ("sums.in",), SUMS.key, Total, add, {"sums.totals": ("name",)})

    with pytest.raises(KeyError, match=r"sums\.every"):
        fold(undeclared, MemoryStateStore(), records(("a", b"1")), decode, HERE)


def rise(key: str, before: Total | None, after: Total | None) -> Outputs:
    return [("sums.rises", {"name": key, "by": (after.amount if after else 0) - (before.amount if before else 0)})]


RISES = Topology(
    "sums", ("sums.in",), SUMS.key, Total, lambda total, event: (add(total, event)[0], []), {"sums.rises": None}, rise
)


def risen(store: MemoryStateStore, *pairs: tuple[str, bytes]) -> list[Any]:
    return [
        (fields, cause.offset) for _, _, fields, cause, _ in fold(RISES, store, records(*pairs), decode, HERE).outputs
    ]


def test_a_key_emits_its_change_once_a_transaction_from_before_it_to_after_it() -> None:
    """What is caused by several records names the last of them that changed something."""
    given = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"0"), ("a", b"13")]
    assert risen(MemoryStateStore({"a": Total(5)}), *given) == [
        ({"name": "a", "by": 4}, 2),
        ({"name": "b", "by": 2}, 1),
    ]


def test_the_rises_of_any_batches_add_up_to_the_same() -> None:
    given = [("a", b"1"), ("b", b"2"), ("a", b"-1"), ("a", b"7"), ("b", b"3"), ("b", b"-1")]
    for cut in range(len(given) + 1):
        store, sums = MemoryStateStore(), {"a": 0, "b": 0}
        for part in (given[:cut], given[cut:]):
            transaction = fold(RISES, store, records(*part), decode, HERE)
            for _, _, fields, _, _ in transaction.outputs:
                sums[fields["name"]] += fields["by"]
            store.apply(transaction.changes)
        assert sums == {"a": 7, "b": 0}


def test_a_key_that_came_and_went_within_a_transaction_emits_nothing() -> None:
    assert risen(MemoryStateStore(), ("a", b"1"), ("a", b"-1")) == []


def giving(*outputs: Any, per_change: bool = False, rows: tuple[str, ...] | None = None) -> list[Any]:
    """Topic, key, headers and fields of what becomes of a record of key "a" whose handler asks for these."""
    topology = Topology(
        "sums",
        ("sums.in",),
        SUMS.key,
        Total,
        (lambda total, event: (Total(1), ())) if per_change else (lambda total, event: (total, outputs)),
        {"sums.out": rows},
        (lambda key, before, after: outputs) if per_change else None,
    )
    produced = fold(topology, MemoryStateStore(), records(("a", b"1")), decode, HERE).outputs
    assert all(record.source == b"sums.in/0/0" for _, _, _, record, _ in produced)
    return [(topic, key, list(headers), fields) for topic, key, fields, _, headers in produced]


@pytest.mark.parametrize("per_change", [False, True], ids=["handle", "emit_change"])
def test_an_output_may_name_its_key_and_headers(per_change: bool) -> None:
    """In any mixture with plain ones, which have the state key."""
    headers = [("trace", b"1"), ("empty", None)]
    given = [
        ("sums.out", 1),
        Output("sums.out", 2, key="b"),
        Output("sums.out", 3, key=7, headers=headers),
        Output("sums.out", 4),
        ("sums.out", 5, "c"),
    ]
    assert giving(*given, per_change=per_change) == [
        ("sums.out", "a", [], 1),
        ("sums.out", "b", [], 2),
        ("sums.out", "7", headers, 3),
        ("sums.out", "a", [], 4),
        ("sums.out", "c", [], 5),
    ]


@pytest.mark.parametrize("per_change", [False, True], ids=["handle", "emit_change"])
@pytest.mark.parametrize(
    ("named", "error"),
    [
        ({"key": 1.5}, "the key of an output"),
        ({"key": b"b"}, "the key of an output"),
        ({"headers": [("trace", "text")]}, "a header is a text and bytes"),
        ({"headers": [(b"trace", b"1")]}, "a header is a text and bytes"),
        ({"headers": [("onefold-source", b"t/0/0")]}, "the processor's"),
    ],
)
def test_a_key_or_headers_that_cannot_be_are_a_bug(named: dict[str, Any], error: str, per_change: bool) -> None:
    """Before anything is written: a foreign source header would be the judge's finding."""
    with pytest.raises((TypeError, ValueError), match=error):
        giving(Output("sums.out", {"n": 1}, **named), per_change=per_change)


def test_a_row_is_its_fields_whatever_its_key() -> None:
    """The last one of a transaction is written, under the key that it names."""
    given = [("sums.out", {"n": 1}), Output("sums.out", {"n": 2}), Output("sums.out", {"n": 1}, key="b")]
    assert giving(*given, rows=("n",)) == [("sums.out", "b", [], {"n": 1}), ("sums.out", "a", [], {"n": 2})]


def test_each_input_may_have_a_key_of_its_own() -> None:
    """Events of two topics with the same key share one state."""

    def handle(seen: Any, event: Event) -> tuple[Any, Outputs]:
        return [*(seen or []), event.topic], ()

    keys = {"x": lambda value: value["x"], "y": lambda value: value["deep"]["y"]}
    topology = Topology("two", ("x", "y"), keys, list, handle, {})
    values = {"x": {"x": 1}, "y": {"deep": {"y": "1"}}}
    given = [Record(topic, 0, 0, None, None) for topic in ("y", "x")]
    changes = fold(topology, MemoryStateStore(), given, lambda record: values[record.topic], HERE).changes

    assert {key: state for key, (state, _) in changes.items()} == {"1": ["y", "x"]}


def test_an_input_without_a_key_is_refused() -> None:
    """When it is declared, and not when its first record comes."""
    with raises(Refused, Code.PIPELINE_WRONG):
        Topology("two", ("x", "y"), {"x": str}, Total, add, {})
