"""A store of objects keeps what src/onefold/jobs/protocols.py promises, in a folder and in S3 alike."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from onefold.jobs.objects import open_to_read
from onefold.jobs.objects.s3 import PART_BYTES
from onefold.jobs.objects.store import ObjectStore
from onefold.jobs.protocols import Missing
from tests.support.objects import StorePlace
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("whole-objects")

# More than two pages of a listing of S3, which has a thousand a page.
MANY = 2_200


def test_what_is_there_is_never_written_again(store: ObjectStore) -> None:
    assert store.put("payloads/ab", b"first")
    assert not store.put("payloads/ab", b"second")
    assert store.put_stream("payloads/ab", iter([b"a third one"])) == len(b"first")
    assert store.get("payloads/ab") == b"first"
    assert store.put("empty", b"")
    assert (store.get("empty"), store.size("empty")) == (b"", 0)


def test_ranges(store: ObjectStore) -> None:
    store.put("a", b"0123456789")
    for start, end, found in (
        (0, None, b"0123456789"), (3, None, b"3456789"), (0, 4, b"0123"), (2, 5, b"234"), (9, 10, b"9"), (8, 99, b"89"),
        (10, None, b""), (50, 60, b""), (4, 4, b""), (5, 2, b""),
    ):  # fmt: skip
        assert store.get("a", start, end) == found, (start, end)


def test_what_is_not_there_is_missing(store: ObjectStore) -> None:
    assert store.size("none/such") is None
    for start, end in ((0, None), (3, 5), (3, 3)):
        with pytest.raises(Missing):
            store.get("none/such", start, end)
    store.delete("none/such")
    store.put("a/b", b"x")
    store.delete("a/b")
    assert store.size("a/b") is None
    assert list(store.ids()) == []
    assert store.put("a/b", b"again")


def test_a_stream_of_several_parts_is_one_object(store: ObjectStore) -> None:
    size = PART_BYTES * 2 + 12_345
    content = (bytes(range(251)) * (size // 251 + 1))[:size]

    def parts() -> Iterator[bytes]:
        yield b""
        for start in range(0, size, 1_000_003):
            yield content[start : start + 1_000_003]

    assert store.put_stream("large", parts()) == size
    assert store.size("large") == size
    edge = PART_BYTES - 2
    assert store.get("large", edge, edge + 4) == content[edge : edge + 4]
    assert store.get("large", size - 1) == content[-1:]
    assert store.put_stream("large", iter([b"other"])) == size
    assert store.put_stream("small", iter([b"ab", b"c"])) == 3
    assert store.put_stream("none", iter([])) == 0
    assert (store.get("small"), store.get("none")) == (b"abc", b"")
    assert store.clear(0) == 0


def test_a_stream_that_fails_leaves_nothing(store: ObjectStore) -> None:
    def parts() -> Iterator[bytes]:
        yield bytes(PART_BYTES + 1)
        yield bytes(PART_BYTES)
        raise RuntimeError("cut off")

    with pytest.raises(RuntimeError, match="cut off"):
        store.put_stream("large", parts())
    assert list(store.ids()) == []
    assert store.clear(0) == 0


@pytest.mark.parametrize("size", [1_000, PART_BYTES + 1_000])
def test_of_writers_at_once_one_is_first(size: int, store_place: StorePlace) -> None:
    """The others are told, if they can be, and what is there is one of them as a whole."""
    writers, rounds = (8, 12) if size < PART_BYTES else (3, 2)
    stores = [store_place.open() for _ in range(writers)]
    for number in range(rounds):
        name, together = f"race/{number}", threading.Barrier(writers)
        contents = [bytes([65 + writer]) * (size + writer) for writer in range(writers)]

        def write(writer: int, name: str = name, together: threading.Barrier = together) -> bool | int:
            content = bytes([65 + writer]) * (size + writer)
            together.wait()
            store = stores[writer]
            return store.put(name, content) if size < PART_BYTES else store.put_stream(name, iter([content]))

        with ThreadPoolExecutor(writers) as pool:
            told = list(pool.map(write, range(writers)))
        found = stores[0].get(name)
        assert found in contents
        if size < PART_BYTES:
            assert [contents[writer] for writer in range(writers) if told[writer]] == [found]
        else:
            assert set(told) == {len(found)}


def test_marks_are_apart_from_objects(store: ObjectStore) -> None:
    before = datetime.now(UTC)
    store.put("payloads/ab", b"x")
    store.mark("payloads/cd")  # what is not there yet
    store.mark("payloads/ab")
    found = {mark.name: mark.since for mark in store.marks()}
    assert found.keys() == {"payloads/ab", "payloads/cd"}
    # S3 says it to the second.
    assert all(before - timedelta(seconds=1) <= since <= datetime.now(UTC) for since in found.values())
    assert list(store.ids()) == ["payloads/ab"]
    store.unmark("payloads/ab")
    store.unmark("payloads/ab")
    assert [mark.name for mark in store.marks()] == ["payloads/cd"]
    assert store.get("payloads/ab") == b"x"


def test_a_mark_is_as_old_as_the_newest_call(store: ObjectStore) -> None:
    def since() -> datetime:
        store.mark("a")
        (mark,) = store.marks()
        return mark.since

    first = since()
    eventually(lambda: since() > first, 5, "a mark that is set again is younger")


@pytest.mark.long  # 14 s
def test_thousands_are_listed_in_order(store: ObjectStore) -> None:
    """By their whole names, which is not folder by folder."""
    names = [f"payloads/{number:x}" for number in range(MANY - 3)] + ["payloads0/a", "snapshots/a/b", "p"]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(name, b"x"), names))
        list(pool.map(store.mark, names[:1_100]))

    assert list(store.ids()) == sorted(names)
    assert list(store.ids("payloads/")) == sorted(name for name in names if name.startswith("payloads/"))
    assert list(store.ids("payloads/7f")) == sorted(name for name in names if name.startswith("payloads/7f"))
    assert list(store.ids("snap")) == ["snapshots/a/b"]
    assert list(store.ids("nothing/of/it")) == []
    assert {mark.name for mark in store.marks()} == set(names[:1_100])


def test_no_name_leads_out_of_the_store(store: ObjectStore) -> None:
    with_the_name: tuple[Callable[[str], object], ...] = (
        lambda name: store.put(name, b""),
        lambda name: store.put_stream(name, iter([b""])),
        store.get,
        store.size,
        store.delete,
        store.mark,
        store.unmark,
    )
    for name in (
        "",
        "/",
        "a/",
        "/a",
        "a//b",
        ".",
        "..",
        "../a",
        "a/../b",
        "a/./b",
        "A",
        "ä",
        "a b",
        "a\n",
        "a\\b",
        "~",
        "a" * 513,
    ):
        for call in with_the_name:
            with pytest.raises(ValueError, match="is not the name of an object"):
                call(name)
    for prefix in ("..", "/", "a/../", "A", "a//"):
        with pytest.raises(ValueError, match="is not the beginning of a name"):
            list(store.ids(prefix))
    assert list(store.ids()) == []


@pytest.mark.promise("dashboards-only-read")
def test_a_reader_cannot_write_and_makes_no_folder(store_place: StorePlace, tmp_path: Path) -> None:
    nobody_wrote = open_to_read((tmp_path / "empty").as_uri())
    assert nobody_wrote.size("a") is None
    with pytest.raises(Missing):
        nobody_wrote.get("a")
    assert not (tmp_path / "empty").exists()
    store_place.open().put("a", b"0123456789")
    reader = open_to_read(store_place.url, store_place.endpoint)
    assert (reader.size("a"), reader.get("a", 2, 4)) == (10, b"23")
    assert {name for name in dir(reader) if not name.startswith("_")} == {"get", "size"}
