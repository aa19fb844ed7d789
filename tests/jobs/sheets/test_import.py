"""A CSV file as lines of a payload, and the verb that imports it."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from onefold.cli.main import run
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.jobs.apps.sheets.cells import parse_line
from onefold.jobs.apps.sheets.tables import NotATable, payload_lines
from onefold.jobs.objects.local import LocalStore
from onefold.processor.core.topology import Topology
from tests.support.coded import code_of
from tests.support.waiting import eventually


def lines(text: str) -> list[bytes]:
    made = list(payload_lines(io.StringIO(text, newline="")))
    assert [parse_line(line)[0] for line in made] == sorted({parse_line(line)[0] for line in made})
    return made


def test_fields_become_cells() -> None:
    assert lines('a,1.50,-0\n\n"x,\r\ny",,=A1+1\r\n007,1e5,+1,1.0000000001,-,-1') == [
        b'[1,1,"t","a"]\n',
        b'[1,2,"n","1.5"]\n',
        b'[1,3,"n","0"]\n',
        b'[3,1,"t","x,\\r\\ny"]\n',
        b'[3,3,"f","=A1+1"]\n',
        b'[4,1,"t","007"]\n',
        b'[4,2,"t","1e5"]\n',
        b'[4,3,"t","+1"]\n',
        b'[4,4,"t","1.0000000001"]\n',
        b'[4,5,"t","-"]\n',
        b'[4,6,"n","-1"]\n',
    ]
    assert lines("") == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\nb," + "x" * 32_768, "cell B2: 32,768 characters are more than the 32,767"),
        ("=" * 8_193, "cell A1: 8,193 characters are more than the 8,192"),
        ("a\0b", "cell A1: a text has a character that cannot be stored"),
        ("a\n" + "," * 16_384, "row 2 has 16,385 fields: a sheet has 1,048,576 rows and 16,384 columns"),
        ('ok\n"never closed', "row 2 is not CSV: "),
        ('"a"b', "row 1 is not CSV: "),
        ("x" * 200_000, "row 1 is not CSV: field larger than field limit"),
    ],
)
def test_what_cannot_be_a_cell_is_named(text: str, told: str) -> None:
    with pytest.raises(NotATable) as found:
        lines(text)
    assert str(found.value).startswith(told)


@pytest.fixture
def settings(bootstrap_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", bootstrap_servers)
    monkeypatch.setenv("ONEFOLD_OBJECTS", (tmp_path / "objects").as_uri())


def told(client: dict[str, str], topology: Topology, wanted: int) -> list[dict[str, object]]:
    """What stands in sheets.uploads."""
    reader = Consumer({**client, "group.id": "test", "enable.auto.commit": False, "isolation.level": "read_committed"})
    found: list[dict[str, object]] = []

    def enough() -> bool:
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            found.append(json.loads(message.value() or b""))
        return len(found) >= wanted

    try:
        reader.assign([TopicPartition("sheets.uploads", partition, 0) for partition in range(2)])
        eventually(enough, 30, f"{wanted} records")
    finally:
        reader.close()
    return found


@pytest.mark.usefixtures("settings")
def test_a_file_is_imported_once_however_often(
    fresh_domain: Callable[..., Topology],
    client: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same object under the same name; under another one it is another import."""
    topology = fresh_domain("sheets")
    file = tmp_path / "budget.csv"
    file.write_bytes("\ufeffitem,cost\nté,1.20\n".encode())
    made = []
    for more in ([], [], ["--request", "mine"]):
        assert run(["sheets", "import", "budget", str(file), *more, "--json"]) == 0
        made.append(json.loads(capsys.readouterr().out))
    assert made[0] == made[1]
    assert made[0]["object"] != made[2]["object"]
    assert (made[0]["cells"], made[2]["request"]) == (4, "mine")
    store = LocalStore(tmp_path / "objects")
    assert (
        store.get(made[0]["object"]) == '[1,1,"t","item"]\n[1,2,"t","cost"]\n[2,1,"t","té"]\n[2,2,"n","1.2"]\n'.encode()
    )
    sent = told(client, topology, 3)
    assert [one["object_id"] for one in sent if one["object_id"] == made[0]["object"]] == [made[0]["object"]] * 2
    assert {one["action"] for one in sent} == {"complete"}
    assert run(["sheets", "import", "budget", str(file)]) == 0
    assert "4 cells of " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, Code.FILE_UNUSABLE),
        (b"a\n\xff", Code.UPLOAD_WRONG),
        (b'"a', Code.UPLOAD_WRONG),
        (b"", Code.UPLOAD_WRONG),
    ],
)
@pytest.mark.usefixtures("settings")
def test_what_cannot_be_imported_is_a_sentence(
    content: bytes | None, code: Code, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.csv"
    if content is not None:
        file.write_bytes(content)
    assert run(["sheets", "import", "budget", str(file)]) == USAGE
    assert code_of(capsys.readouterr().err) is code
    assert not list(LocalStore(tmp_path / "objects").ids())
