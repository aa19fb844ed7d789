"""`onefold sheets sweep` shows what nothing has named, and asks the log; it deletes nothing."""

import json
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.cli.main import run
from onefold.error_codes import Code
from onefold.exit_codes import FAILED
from onefold.jobs.apps.sheets.uploads import UPLOADS, create, import_payload, to_kafka, upload
from onefold.jobs.objects import open_store
from onefold.jobs.objects.store import ObjectStore
from onefold.processor.io.admin import connect
from tests.support.coded import code_of
from tests.support.infrastructure import delete_topics
from tests.support.uploads import CONTENT
from tests.support.waiting import eventually

HOUR_S = 3600


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """Where the command looks when nothing is set: a folder of the home."""
    for name in [found for found in os.environ if found.startswith("ONEFOLD_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path))
    return open_store((tmp_path / "objects").as_uri())


def left(store: ObjectStore, home: Path, request: str, age_s: float) -> str:
    """An object that was uploaded so long ago, and never completed."""
    made = create(store, "sheet-1", request, BytesIO(CONTENT))
    upload(store, made, BytesIO(CONTENT))
    file = home / "objects" / "marks" / made.object_id
    os.utime(file, (file.stat().st_mtime - age_s,) * 2)
    return made.object_id


def test_a_dry_run_shows_and_asks_nobody(
    store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no Kafka here to ask."""
    old = left(store, tmp_path, "old", 30 * HOUR_S)
    left(store, tmp_path, "young", HOUR_S)

    assert run(["sheets", "sweep", "--dry-run"]) == FAILED
    assert capsys.readouterr().out == (
        f"{old}  {len(CONTENT)} bytes, for 1 d\n1 objects of {len(CONTENT)} bytes that nothing has named for 1d.\n"
    )
    assert run(["sheets", "sweep", "--older-than", "30m", "--dry-run", "--json"]) == FAILED
    told = json.loads(capsys.readouterr().out)
    assert (len(told["found"]), told["size"], told["asked"]) == (2, 2 * len(CONTENT), 0)
    assert len(list(store.ids())) == 2


def test_what_is_left_unfinished_is_cleared_away(
    store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That asks nobody either; and not in a dry run."""
    (tmp_path / "objects" / "unfinished" / "tmpdead").write_bytes(b"half")
    assert run(["sheets", "sweep", "--older-than", "0s", "--dry-run"]) == 0
    assert "unfinished" not in capsys.readouterr().out
    assert run(["sheets", "sweep", "--older-than", "0s"]) == 0
    assert "1 unfinished writes cleared away.\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["runner"], Code.ARGUMENT_WRONG),
        (["--older-than", "soon"], Code.ARGUMENT_WRONG),
        (["--older-than", "-1d"], Code.ARGUMENT_WRONG),
    ],
)
def test_what_is_wrong_is_one_sentence(
    arguments: list[str], code: Code, store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sheets", "sweep", *arguments]) == 2
    assert code_of(capsys.readouterr().err) is code


def test_a_store_of_another_kind_is_one_sentence(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONEFOLD_OBJECTS", "ftp://x/y")
    assert run(["sheets", "sweep"]) == 2
    assert code_of(capsys.readouterr().err, "ftp://x/y") is Code.SETTING_WRONG


def test_the_log_is_asked(
    store: ObjectStore,
    tmp_path: Path,
    client: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By messages like those of a client, which has the same key: so the log can say which came first."""
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", client["bootstrap.servers"])
    admin = connect(client)
    delete_topics(admin, (UPLOADS,))
    for future in admin.create_topics([NewTopic(UPLOADS, 4, 1)]).values():
        future.result()
    made = import_payload(store, to_kafka(client), "sheet-1", "first", BytesIO(CONTENT))
    assert run(["sheets", "sweep", "--older-than", "0s"]) == 0
    assert "The log was asked to discard them" in capsys.readouterr().out

    messages = read(client, 2)
    assert [(message["object_id"], message["action"]) for message in messages] == [
        (made.object_id, "complete"),
        (made.object_id, "discard"),
    ]
    assert store.get(made.object_id) == CONTENT
    assert [mark.name for mark in store.marks()] == [made.object_id]
    delete_topics(admin, (UPLOADS,))


def read(client: dict[str, str], count: int) -> list[Any]:
    """So many committed messages of the topic, each with the key that it should have."""
    consumer = Consumer({**client, "group.id": "test-sweep", "auto.offset.reset": "earliest"})
    consumer.subscribe([UPLOADS])
    found: list[Any] = []

    def enough() -> bool:
        message = consumer.poll(0.1)
        if message is not None and not message.error():
            value = json.loads(message.value() or b"{}")
            assert message.key() == value["object_id"].encode()
            found.append(value)
        return len(found) >= count

    try:
        eventually(enough, 20, f"{count} messages in {UPLOADS}")
    finally:
        consumer.close()
    return found
