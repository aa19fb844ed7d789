"""The client's calls on real stores: what is refused, what is repeated, and dying at each call of the store."""

import json
import os
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.jobs.apps.sheets.uploads import (
    UPLOADS,
    KeepOrDiscard,
    Message,
    Upload,
    complete,
    create,
    import_payload,
    sweep,
    unnamed,
    upload,
)
from onefold.jobs.objects import open_store
from onefold.jobs.objects.store import ObjectStore
from onefold.jobs.protocols import Job, Place, Refuse
from tests.support.coded import raises
from tests.support.uploads import CONTENT, World

DAY_S = 86_400


class Log:
    """The topic, and what the fold makes of it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.world = World()

    def produce(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.messages.append(message)
            self.world = self.world.folded(message[2])

    def work(self, store: ObjectStore) -> None:
        """Every job there ever was, the newest first."""
        for decision in reversed(self.world.jobs):
            effect = KeepOrDiscard(store)
            job = Job("sheets.objects", json.loads(self.messages[0][2])["object_id"], Place(0, decision.number),
                      {"keep": decision.keep})  # fmt: skip
            assert effect.before(job, None) == ()
            assert list(effect.steps(job, None, None)) == []
            result = effect.finish(job, None)
            assert result == {"kept": decision.keep}
            assert effect.stands(job, result)


def imported(store: ObjectStore, log: Log, *, request: str = "first", content: bytes = CONTENT) -> Upload:
    return import_payload(store, log.produce, "sheet-1", request, BytesIO(content))


def test_an_upload_is_an_object_and_one_message(store: ObjectStore) -> None:
    log = Log()
    made = imported(store, log)

    ((topic, key, value),) = log.messages
    assert (topic, key) == (UPLOADS, made.object_id.encode())
    assert json.loads(value) == {
        "object_id": made.object_id, "sheet_id": "sheet-1", "action": "complete", "cells": 2, "size": len(CONTENT)
    }  # fmt: skip
    assert store.get(made.object_id) == CONTENT
    assert [mark.name for mark in store.marks()] == [made.object_id]
    log.work(store)
    assert list(store.marks()) == []
    assert store.get(made.object_id) == CONTENT


def test_a_name_follows_from_sheet_request_and_content(tmp_path: Path) -> None:
    store, log = open_store(tmp_path.as_uri()), Log()
    first = imported(store, log)
    assert imported(store, log) == first
    # sha256 of "sheet-1\nfirst\n" and of the content's own sha256 in hex, by the coreutils.
    assert first.object_id == "payloads/26a3c4522156a642950cc5c99f94b12d49cd48402d4b3f748c2733edacd48384"
    others = {
        imported(store, log, request="second").object_id,
        imported(store, log, content=CONTENT[:17]).object_id,
        import_payload(store, log.produce, "sheet-2", "first", BytesIO(CONTENT)).object_id,
    }
    assert len(others | {first.object_id}) == 4


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the payload has no cell"),
        (b'[1,1,"n","1"]\n[1,1,"n","2"]\n', "line 2 of the payload is refused: it is not behind the one before"),
        (b'[2,1,"n","1"]\n[1,9,"n","2"]\n', "line 2 of the payload is refused: it is not behind the one before"),
        (b'[1,1,"n","1"]', "line 1 of the payload is refused: "),
        (b'[1,1,"n","1.0"]\n', "line 1 of the payload is refused: "),
        (b'[1, 1,"n","1"]\n', "line 1 of the payload is refused: "),
        (b'[0,1,"n","1"]\n', "line 1 of the payload is refused: "),
        (b'[1,1,"x","1"]\n', "line 1 of the payload is refused: "),
        (b'[1,1,"t","' + b"a" * 300_000 + b'"]\n', "line 1 of the payload is refused: "),
        (b"\x00\xff\n", "line 1 of the payload is refused: "),
    ],
)
def test_what_is_no_payload_is_refused_before_anything_is_written(content: bytes, why: str, tmp_path: Path) -> None:
    store, log = open_store(tmp_path.as_uri()), Log()
    with pytest.raises(UserError) as caught:
        imported(store, log, content=content)
    assert caught.value.message.startswith(why)
    assert len(caught.value.message) < 300
    assert caught.value.exit_code == USAGE
    assert (list(store.marks()), list(store.ids()), log.messages) == ([], [], [])


@pytest.mark.parametrize("sheet_id", ["", "a/b", "a b", "é", "x" * 65, "a\n"])
def test_a_sheet_id_is_checked(sheet_id: str, tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    with raises(UserError, Code.ARGUMENT_WRONG):
        create(store, sheet_id, "r", BytesIO(CONTENT))
    assert list(store.marks()) == []


def test_a_file_that_changes_meanwhile_is_not_uploaded(store: ObjectStore) -> None:
    made = create(store, "sheet-1", "r", BytesIO(CONTENT))
    with raises(UserError, Code.UPLOAD_WRONG):
        upload(store, made, BytesIO(CONTENT.replace(b"12.5", b"12.6")))
    assert store.size(made.object_id) is None


def test_what_was_not_uploaded_cannot_be_completed(tmp_path: Path) -> None:
    store, log = open_store(tmp_path.as_uri()), Log()
    made = create(store, "sheet-1", "r", BytesIO(CONTENT))
    with raises(UserError, Code.OBJECT_MISSING):
        complete(store, log.produce, made)
    assert log.messages == []


def test_create_marks_for_whoever_writes_the_object(tmp_path: Path) -> None:
    """Also by another tool, which knows no marks."""
    store = open_store(tmp_path.as_uri())
    made = create(store, "sheet-1", "r", BytesIO(CONTENT))
    store.put(made.object_id, CONTENT)
    assert [found.name for found in unnamed(store, 0)] == [made.object_id]


def test_patience_counts_from_the_upload(tmp_path: Path) -> None:
    """A client may take its time between two calls."""
    store = open_store(tmp_path.as_uri())
    made = create(store, "sheet-1", "r", BytesIO(CONTENT))
    file = tmp_path / "marks" / made.object_id
    os.utime(file, (file.stat().st_mtime - 2 * DAY_S,) * 2)
    upload(store, made, BytesIO(CONTENT))

    assert list(unnamed(store, DAY_S)) == []
    assert [found.name for found in unnamed(store, 0)] == [made.object_id]


def test_a_sweep_asks_for_what_is_old_and_there(tmp_path: Path) -> None:
    """A mark without an object is left alone, and so is what somebody else marked."""
    store, log = open_store(tmp_path.as_uri()), Log()
    old, young = create(store, "s", "old", BytesIO(CONTENT)), create(store, "s", "young", BytesIO(CONTENT))
    for made in (old, young):
        upload(store, made, BytesIO(CONTENT))
    create(store, "s", "not yet", BytesIO(CONTENT))
    store.mark("mails/1")
    store.put("mails/1", b"x")
    file = tmp_path / "marks" / old.object_id
    os.utime(file, (file.stat().st_mtime - DAY_S,) * 2)

    assert sweep(store, log.produce, DAY_S - 60) == 1
    ((topic, key, value),) = log.messages
    assert (topic, key) == (UPLOADS, old.object_id.encode())
    assert json.loads(value) == {
        "object_id": old.object_id, "sheet_id": "-", "action": "discard", "cells": 0, "size": len(CONTENT)
    }  # fmt: skip
    assert store.size(old.object_id) == len(CONTENT)
    assert sweep(store, log.produce, 0) == 2


class Dies(Exception):
    """What a process cannot catch."""


class Fragile:
    """A real store, or the log, whose caller dies at a call: before it is made, or when it is made and nobody has heard of it."""

    def __init__(self, store: object, at: int, before: bool) -> None:
        self._store, self._left, self._before = store, at, before

    def __getattr__(self, name: str) -> Callable[..., Any]:
        made = getattr(self._store, name)

        def call(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == 0 and self._before:
                raise Dies
            answer = made(*arguments)
            if self._left == 0:
                raise Dies
            return answer

        return call


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_client_may_die_at_every_call(at: int, before: bool, comes_back: bool, store: ObjectStore) -> None:
    """mark, mark, write, look, produce: when it comes back there is one entry, else nothing but a mark."""
    log = Log()
    fragile: Any = Fragile(store, at, before)

    def produce(messages: Iterable[Message]) -> None:
        Fragile(log, fragile._left, before).produce(list(messages))

    with pytest.raises(Dies):
        import_payload(fragile, produce, "sheet-1", "first", BytesIO(CONTENT))
    if comes_back:
        imported(store, log)
    entries = 1 if comes_back or (at == 5 and not before) else 0
    sweep(store, log.produce, -5)  # whatever the clocks of two machines say
    log.work(store)

    assert log.world.entries == entries
    assert [store.get(name) for name in store.ids()] == [CONTENT] * entries
    assert len(list(store.marks())) <= (0 if entries else 1)


def test_a_part_of_a_snapshot_is_no_upload(store: ObjectStore) -> None:
    """Whoever may write to the topic may name it; it stays."""
    store.put("snapshots/aa", b"chunk")
    job = Job("sheets.objects", "snapshots/aa", Place(0, 1), {"keep": False})
    effect = KeepOrDiscard(store)
    with pytest.raises(Refuse, match="is no upload"):
        list(effect.steps(job, None, None))

    assert store.get("snapshots/aa") == b"chunk"
    assert effect.stands(job, None)
