"""Files of contracts: every form that is legal is read alike by processor, sink and judge; of any other there is one sentence."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onefold import contract_files, pipelines, schema_history
from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured, Refused
from onefold.processor.io import contracts
from onefold.spark_sink.contracts import load_domain
from onefold.verify import contracts as judged
from onefold.verify.verdict import CannotTell
from tests.support.coded import raises

pytestmark = pytest.mark.promise("legal-contracts")

TOPIC = "sales.minutes"
MINUTE: dict[str, Any] = {
    "type": "record",
    "name": "Minute",
    "namespace": "sales",
    "topics": [TOPIC],
    "fields": [{"name": "shop", "type": "string"}, {"name": "cents", "type": "long"}],
}
STATE = {"type": "enum", "name": "State", "symbols": ["open", "over"]}
OTHER = {"type": "record", "name": "Other", "namespace": "sales", "fields": [{"name": "state", "type": STATE}]}


def but(**changed: Any) -> dict[str, Any]:
    """The record with other attributes; None leaves one out."""
    return {name: value for name, value in (MINUTE | changed).items() if value is not None}


def plus(*kinds: Any, **more: Any) -> dict[str, Any]:
    """The record with further fields f0, f1, ..."""
    fields = [{"name": f"f{number}", "type": kind, **more} for number, kind in enumerate(kinds)]
    return but(fields=[*MINUTE["fields"], *fields])


def text(schema: Any) -> bytes:
    return json.dumps(schema).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`avro/` beside `sql/`, with a sound contract of another pipeline."""
    for name in ("avro", "sql/merge"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "avro" / "shop.Bill.avsc").write_bytes(text(but(name="Bill", namespace="shop", topics=["shop.bills"])))
    for topic in (TOPIC, "shop.bills"):
        (tmp_path / "sql" / "merge" / f"{topic}.sql").write_text("SELECT * FROM :stage", encoding="utf-8")
    return tmp_path / "avro"


def written(folder: Path, data: bytes) -> Path:
    path = folder / "sales.Minute.avsc"
    path.write_bytes(data)
    return path


INNER = but(name="Inner", topics=None, fields=[{"name": "state", "type": "State"}])
USED_BY_NAME = [{**STATE, "namespace": "sales"}, INNER, plus("State", "sales.State", ["null", "State"])]

LEGAL = {
    "the record": (text(MINUTE), "sales.Minute"),
    "no namespace": (text(but(namespace=None)), "Minute"),
    "an empty namespace": (text(but(namespace="")), "Minute"),
    "a full name": (text(but(name="sales.Minute", namespace=None)), "sales.Minute"),
    "a list of one": (text([MINUTE]), "sales.Minute"),
    "a list of several": (text([OTHER, MINUTE]), "sales.Minute"),
    "a union at the top": (text(["null", MINUTE]), "sales.Minute"),
    "a list whose types use each other": (text(USED_BY_NAME), "sales.Minute"),
    "a protocol": (text({"protocol": "P", "namespace": "sales", "types": [STATE, but(namespace=None)]}), "sales.Minute"),
    "a byte order mark": (b"\xef\xbb\xbf" + text(MINUTE), "sales.Minute"),
    "words of Python": (text(but(fields=[*MINUTE["fields"], *({"name": n, "type": "long"} for n in ("class", "from", "None"))])),
                        "sales.Minute"),
    "two underscores": (text(but(fields=[*MINUTE["fields"], {"name": "__deleted", "type": "string"}])), "sales.Minute"),
    "names used again": (text(plus(STATE, "State", "sales.State", ["null", "State"])), "sales.Minute"),
    "a type by its name in an object": (text(plus(STATE, {"type": "State"})), "sales.Minute"),
    "a default of the second branch": (text(plus(["long", "null"], default=None)), "sales.Minute"),
    "aliases": (text(but(aliases=["Old"], fields=[{**MINUTE["fields"][0], "aliases": ["store"]}, MINUTE["fields"][1]])),
                "sales.Minute"),
}  # fmt: skip


@pytest.mark.parametrize("form", LEGAL)
def test_a_legal_file_is_read_alike_by_processor_sink_and_judge(form: str, folder: Path) -> None:
    data, name = LEGAL[form]
    written(folder, data)
    processor = contracts.load(folder, (TOPIC,))[TOPIC]
    sink = load_domain("sales", folder, folder.parent / "sql").contracts[TOPIC]
    judge = judged.load(folder)[TOPIC]
    assert processor.name == sink.name == judge.name == name
    assert processor.prefix == sink.header == judge.prefix
    fields = [field["name"] for field in processor.schema["fields"]]
    assert fields == [column.name for column in sink.columns] == list(judge.fields)


def test_a_verifier_names_the_file_that_it_cannot_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, also if several pipelines share the folder."""
    path = written(folder, b"{")
    both = dict.fromkeys(("sales", "shop"), SimpleNamespace(contracts=folder))
    monkeypatch.setattr(pipelines, "find", lambda: SimpleNamespace(pipelines=both))
    found = judged.contracts.__wrapped__()
    assert found["shop.bills"].name == "shop.Bill"
    with raises(CannotTell, Code.SCHEMA_WRONG, f"{path} is no schema") as caught:
        found[TOPIC]
    assert str(caught.value).count(str(path)) == 1


def test_the_types_of_a_list_are_within_each_record_that_uses_them() -> None:
    """As if the record had been written by itself."""
    alone = plus(STATE, "State", ["null", "State"])
    assert judged.contract_of(alone).prefix == schema_history.header(alone)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", " is empty: write a record schema of Avro into it, or delete the file"),
        (b'{"type": "record",', " is no JSON: Expecting property name enclosed in double quotes at line 1, column 19."),
        (b"[" * 100_000, " is nested too deep to be read"),
        (json.dumps(MINUTE).encode("utf-16"), " is not UTF-8: the byte at 0 is 0xff. Save it as UTF-8"),
        (text(MINUTE).replace(b"shop", b"sh\xe4p"), "is not UTF-8: the byte at "),
        *(
            (text(kind), ": the file holds no record: a schema is ")
            for kind in ("string", 42, None, [], ["null"], STATE, {"a": 1})
        ),
        (text({"protocol": "P"}), ": the file holds no record"),
        (text([MINUTE, [MINUTE]]), "stands beside its records: only records, enums and fixed types can"),
        (text(but(name=None)), ": it has the name null as record: a name has letters, digits and _"),
        (text(but(name="Min-ute")), ': it has the name "Min-ute" as record'),
        (text(but(namespace="sa les")), ": sa les.Minute has a namespace that is none"),
        (text(but(fields=None)), ": sales.Minute has no list of fields: write"),
        (text(but(fields=["shop"])), ': sales.Minute has the field "shop": write'),
        (text(but(fields=[{"name": "shop"}])), ': sales.Minute has the field {"name": "shop"}: write'),
        (text(but(fields=[{"name": "a-b", "type": "long"}])), ": sales.Minute has a field called 'a-b'"),
        (text(but(fields=MINUTE["fields"] * 2)), ": sales.Minute has two fields called shop: rename or delete one of them"),
        (text(but(fields=[{"name": "__slots__", "type": "long"}])), "a field is called __slots__"),
        (text(but(topics=TOPIC)), ': "topics" is "sales.minutes": it is a list of topics'),
        (text(but(topics=[1])), ': "topics" is [1]: it is a list of topics'),
        (text(plus("strng")), ": field 'f0' of sales.Minute has the type sales.strng, which the file does not define before it"),
        (text(plus("State", STATE)), "has the type sales.State, which the file does not define before it"),
        (text([plus("Other"), OTHER]), "has the type sales.Other, which the file does not define before it"),
        (text(plus(["null", "Minute"])), "field 'f0' of sales.Minute has the type sales.Minute, which contains itself"),
        (text(plus({"type": "array", "items": "sales.Minute"})), "has the type sales.Minute, which contains itself"),
        (text(plus(STATE, STATE)), ": sales.State is defined twice: use its name where it comes again"),
        (text([OTHER, OTHER, MINUTE]), ": sales.Other is defined twice"),
        (text([STATE | {"namespace": "sales"}, plus(STATE)]), ": sales.State is defined twice"),
        (text(plus(["null", ["string"]])), "is a union within a union"),
        (text(plus([])), "is a union of no types"),
        (text(plus(["string", "string"])), "is a union that has string twice"),
        (text(plus({"type": {"type": "string"}})), "write a type's name"),
        (text(plus({"type": "array"})), 'is array without "items"'),
        (text(plus({**STATE, "symbols": []})), ": sales.State has no symbols"),
        (text(plus({**STATE, "symbols": ["a", "a"]})), ": sales.State has the symbol a twice"),
        (text(plus({**STATE, "symbols": ["a b"]})), ': sales.State has the symbol "a b"'),
        (text(plus({"type": "fixed", "name": "F"})), ": sales.F has the size null"),
        (text(plus({"type": "bytes", "logicalType": "decimal"})), "is a decimal of precision null and scale 0"),
        (text(plus("long", default="a")), "field 'f0' of sales.Minute has the default \"a\", which is none of its type"),
        (text(plus("long", default=2**63)), "has the default 9223372036854775808, which is none of its type"),
        (text(plus("string", default=None)), "has the default null, which is none of its type"),
        (text(plus(STATE, default="gone")), 'has the default "gone", which is none of its type'),
        (text(plus({"type": "array", "items": "null"})), "an array or a map of values that take no bytes"),
    ],
)  # fmt: skip
def test_any_other_file_is_one_sentence_with_its_name(data: bytes, says: str, folder: Path) -> None:
    """Of the pipeline that needs it. The other one, whose contract is in the same folder, has nothing to do with it."""
    path = written(folder, data)
    with pytest.raises(Refused) as refused:
        contracts.load(folder, (TOPIC,))
    said = str(refused.value)
    assert said.startswith(f"{path}")
    assert says in said
    assert "\n" not in said
    assert contracts.load(folder, ("shop.bills",)).keys() == {"shop.bills"}
    assert load_domain("shop", folder, folder.parent / "sql").contracts.keys() == {"shop.bills"}
    assert "shop.bills" in judged.load(folder)


NO_ROOM = {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 9}


@pytest.mark.parametrize("data", [b"", b"{", text(42), text(plus("strng")), text(plus(NO_ROOM)), b"\xff"])
def test_sink_and_judge_name_the_file(data: bytes, folder: Path) -> None:
    path = written(folder, data)
    with pytest.raises(contract_files.Unusable) as unusable:
        contract_files.records(path)
    with pytest.raises(Misconfigured) as misconfigured:
        load_domain("sales", folder, folder.parent / "sql")
    assert str(misconfigured.value) == str(unusable.value)
    with raises(CannotTell, Code.SCHEMA_WRONG, str(path)):
        judged.load(folder)[TOPIC]


def test_of_two_files_the_one_with_the_topic_in_it_is_named(folder: Path) -> None:
    (folder / "a.avsc").write_text("{", encoding="utf-8")
    path = written(folder, text(MINUTE)[:-1])
    with raises(Refused, Code.SCHEMA_WRONG, str(path)):
        contracts.load(folder, (TOPIC,))


def test_two_records_for_one_topic_are_said_with_both(folder: Path) -> None:
    path = written(folder, text([MINUTE, but(name="Again")]))
    with raises(Refused, Code.SCHEMA_WRONG, str(path)):
        contracts.load(folder, (TOPIC,))
