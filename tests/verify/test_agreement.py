"""Judge and judged read bytes with different code, and agree on what is admissible and on its values.

The judge reads with the standard library's JSON, the processor with msgspec: two parsers, one rule.
"""

import random
from decimal import Decimal
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.processor.apps import bank as bank_app
from onefold.processor.apps import campaigns as campaigns_app
from onefold.processor.apps import runner as runner_app
from onefold.processor.apps import sheets as sheets_app
from onefold.processor.apps import trades as trades_app
from onefold.processor.core.errors import Rejected
from onefold.processor.core.values import Record
from onefold.processor.io import contracts as processor_contracts
from onefold.processor.io.partitioner import partition_of as processor_partition_of
from onefold.processor.io.serde import AvroCodec
from onefold.verify.contracts import contracts
from onefold.verify.decode import Inadmissible, decode
from onefold.verify.placement import partition_of
from onefold.workloads import bank, campaigns, runner, sheets, trades
from onefold.workloads.campaigns import instant
from onefold.workloads.hostile import BROKEN, ODD, Good, hostile

DOMAINS = {runner: runner_app, campaigns: campaigns_app, trades: trades_app, bank: bank_app, sheets: sheets_app}
APPS = {topic: app for app in DOMAINS.values() for topic in app.TOPOLOGY.inputs}
CODECS = {topic: AvroCodec(app.TOPOLOGY, processor_contracts.load()) for topic, app in APPS.items()}
TEXTS: dict[str, list[bytes]] = {}
for domain in DOMAINS:
    few = {bank: (50, {"accounts": 20}), sheets: (250, {"sheets": 1, "alone": True})}
    number, given_ = few.get(domain, (50, {}))
    for made in domain.generate(1, number, **given_):
        TEXTS.setdefault(made.topic, []).append(made.value)

MANY = settings().max_examples  # 100 with --all, else a tenth of them


def judged(topic: str, value: bytes | None) -> dict[str, Any] | None:
    try:
        return decode(contracts()[topic], value)
    except Inadmissible:
        return None


def processed(topic: str, value: bytes | None) -> dict[str, Any] | None:
    try:
        decoded = CODECS[topic].decode(Record(topic, 0, 0, None, value))
    except Rejected:
        return None
    fields: dict[str, Any] = msgspec.to_builtins(decoded, builtin_types=(Decimal,))
    return fields


@pytest.mark.parametrize("name", [*BROKEN, *ODD])
def test_on_every_hostile_case(name: str) -> None:
    for topic, texts in TEXTS.items():
        for seed, text in enumerate(texts[:4]):
            value = {**BROKEN, **ODD}[name](random.Random(seed), Good(topic, text))
            assert processed(topic, value) == judged(topic, value), topic


NUMBERS = [b"-0", b"1.0", b"1e400", b"NaN", b"9223372036854775808", b"1e-999", b"9" * 330, b"1e99999999999999999999"]
VALUES = [
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'"\\ud800"',
    b'"\\u0000"',
    b'"user_id"',
    b'"id"',
    b'"version"',
    b'"Value"',
    b'"1_0.5"',
    b'" 7 "',
    b'"NaN"',
    b"[" * 70,
    b'"' + b'\\\\"' * 70 + b'"',
    b"[" * 62 + b'"\\\\"' + b"]" * 62,
    b"[" * 64 + b'"\\\\\\""' + b"]" * 64,
]
MARKS = [b"{", b"}", b'"', b",", b":", b"\\", b" ", b"\0", b"\x80", b"\xff", b"\xef\xbb\xbf", b"\xc3\x01"]


ENDS = [b"", b'"', b"\\", b'\\"', b"[", b'"]', b"}" * 65]
PARTS = [b'\\"', b'"', b"\\", b'"\\"', b'"[', b'"":', b'{"":', b'\\"[', b'"\\\\"[']


@pytest.mark.parametrize("start", [b"{" * 65, b"[" * 65, b'{"x":' * 64, b'{"x":' * 65, b'{"x":"' + b"[" * 65])
def test_on_quotes_and_brackets_without_end(start: bytes) -> None:
    for part, end, times in product(PARTS, ENDS, (1, 2, 63, 64, 65, 3000)):
        value = start + part * times + end
        for data in (value, TEXTS[campaigns.TOPIC][0][:-1] + b', "x": ' + value):
            assert processed(campaigns.TOPIC, data) == judged(campaigns.TOPIC, data), (part, end, times)


@pytest.mark.parametrize("text", [b"", b"[" * 70, b'\\"' * 70, b"\\\\" * 70, b'\\\\\\"[' * 70, b"]" * 70, b'\\"]' * 70])
def test_on_the_deepest_text_and_one_that_is_deeper(text: bytes) -> None:
    """Whatever is in its strings: levels are counted outside of them."""
    for levels in (62, 63, 64):
        nested = b"[" * levels + b'"' + text + b'", "' + text + b'"' + b"]" * levels
        data = TEXTS[campaigns.TOPIC][0][:-1] + b', "x": ' + nested + b"}"
        assert processed(campaigns.TOPIC, data) == judged(campaigns.TOPIC, data)
        assert (judged(campaigns.TOPIC, data) is None) == (levels > 63)


@given(st.data())
@settings(max_examples=15 * MANY)
def test_on_mutilated_input(data: st.DataObject) -> None:
    topic = data.draw(st.sampled_from(sorted(TEXTS)))
    value = bytearray(data.draw(st.sampled_from(TEXTS[topic])))
    if data.draw(st.booleans()):
        value = bytearray(hostile(random.Random(data.draw(st.integers(0, 10**6))), topic, bytes(value)) or b"")
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(value)))
        until = at + data.draw(st.integers(0, 6))
        value[at:until] = data.draw(st.sampled_from(NUMBERS + VALUES + MARKS) | st.binary(max_size=4))
    assert processed(topic, bytes(value)) == judged(topic, bytes(value))


NEARLY_DATES = (
    r"[0-9]{4}-[01][0-9]-[0-3][0-9][ T][0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{0,7})?(Z|z|[+-][0-2][0-9]:?[0-9]{2})?"
)


@pytest.mark.long  # 9 s
@given(st.text(max_size=30) | st.from_regex(NEARLY_DATES, fullmatch=True))
@settings(max_examples=20 * MANY)
def test_on_dates(text: str) -> None:
    try:
        mine: str | None = instant(text).isoformat(sep=" ")
    except Inadmissible:
        mine = None
    try:
        theirs: str | None = campaigns_app.canonical(text)
    except Rejected:
        theirs = None
    assert theirs == mine


AMOUNTS = st.decimals(allow_nan=True, allow_infinity=True) | st.decimals(-(10**17), 10**17, places=2)


@given(AMOUNTS | st.builds(Decimal, st.from_regex(r"-?[0-9]{1,18}(\.[0-9]{0,4})?(e-?[0-9]{1,3})?", fullmatch=True)))
@settings(max_examples=20 * MANY)
def test_on_amounts(amount: Decimal) -> None:
    try:
        mine: Decimal | None = bank._admit(amount)
    except Inadmissible:
        mine = None
    try:
        theirs: Decimal | None = bank_app._money(bank_app._cents(amount))
    except Rejected:
        theirs = None
    assert theirs == mine


@given(st.integers(-(2**63), 2**63 - 1).map(str) | st.text(max_size=40), st.integers(1, 64))
def test_on_the_home_of_a_key(key: str, partitions: int) -> None:
    assert processor_partition_of(key, partitions) == partition_of(key, partitions)
