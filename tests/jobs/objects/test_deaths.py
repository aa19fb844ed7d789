"""A process that dies while it writes leaves no part of an object that anybody sees; and none needs more memory than a part."""

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from onefold.jobs.objects.local import LocalStore
from onefold.jobs.objects.s3 import PART_BYTES
from onefold.jobs.objects.store import ObjectStore
from tests.support.objects import StorePlace
from tests.support.waiting import eventually

# Says a line when half of a large object is written, and goes no further.
_STUCK = """
import sys
from threading import Event
from onefold.jobs.objects import open_store

def parts():
    yield bytes(int(sys.argv[3]))
    print("half", flush=True)
    Event().wait()
    yield b""

open_store(sys.argv[1], sys.argv[2] or None).put_stream("half", parts())
"""

# Writes one object after the other, of which each byte follows from its name, until it is killed.
_BUSY = """
import sys
from onefold.jobs.objects import open_store
store = open_store(sys.argv[1], sys.argv[2] or None)
for number in range(int(sys.argv[3]), 256):
    store.put(f"busy/{number:x}", bytes([number]) * 3_000_000)
    print(number, flush=True)
"""

# Puts and gets an object, by parts, with so much memory more than it had at the beginning.
_SMALL = """
import hashlib, resource, sys
import psutil
from onefold.jobs.objects import open_store
store = open_store(sys.argv[1], sys.argv[2] or None)
store.put("warm", b"x"), store.put_stream("up", iter([b"y"])), store.get("warm")
size, more = int(sys.argv[3]), int(sys.argv[4])
allowed = psutil.Process().memory_info().vms + more
resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
part = bytes(range(256)) * 1024
assert store.put_stream("large", (part for _ in range(size // len(part)))) == size
found = hashlib.sha256()
for start in range(0, size, 1 << 20):
    found.update(store.get("large", start, start + (1 << 20)))
try:
    bytearray(size)
    sys.exit("there was enough memory for all of it")
except MemoryError:
    print(found.hexdigest())
"""


# S3Proxy's files show a put that is under way as the name and a UUID, until it is whole or its connection is gone.
_UNDER_WAY = re.compile(r"busy/[0-9a-f]+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@contextmanager
def child(program: str, place: StorePlace, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """A writer; killed at the end, if it has not ended."""
    given = [sys.executable, "-P", "-c", program, place.url, place.endpoint or "", *map(str, arguments)]
    with subprocess.Popen(given, stdout=subprocess.PIPE, encoding="utf-8", env=place.environment) as writer:
        try:
            yield writer
        finally:
            writer.kill()


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("size", [1_000, PART_BYTES * 2 + 1])
def test_half_of_an_object_is_never_seen(size: int, store_place: StorePlace) -> None:
    """Neither while it is written, nor after a kill -9; the rest is cleared away by its age, and the name is free."""
    store = store_place.open()
    with child(_STUCK, store_place, size) as writer:
        assert said(writer) == "half"
        assert (list(store.ids()), store.size("half")) == ([], None)
        writer.kill()
    assert (list(store.ids()), store.size("half")) == ([], None)

    assert store.clear(3600) == 0
    left = store.clear(0)
    assert left == (0 if store_place.endpoint and size < PART_BYTES else 1)
    assert store.clear(0) == 0
    assert store.put("half", b"whole")


def test_what_is_seen_after_kills_is_whole(store_place: StorePlace) -> None:
    """Killed at whatever a writer is doing; and what it had been told is there is there."""
    store, begin = store_place.open(), 0
    for moment in range(6):
        with child(_BUSY, store_place, begin) as writer:
            for _ in range(moment + 1):
                begin = int(said(writer)) + 1
            with suppress(subprocess.TimeoutExpired):
                writer.wait(moment * 0.003)  # some time into the next one
            writer.kill()
        seen = eventually(partial(_settled, store), 20, "nothing is left of a put that was cut off")
        found = {int(name.removeprefix("busy/"), 16) for name in seen}
        assert set(range(begin)) <= found
        for number in found:
            assert store.get(f"busy/{number:x}") == bytes([number]) * 3_000_000


def _settled(store: ObjectStore) -> list[str]:
    """Its names, when no put is under way; there is one at least."""
    seen = list(store.ids())
    return [] if any(map(_UNDER_WAY.fullmatch, seen)) else seen


@pytest.mark.long  # 11 s
@pytest.mark.slow  # writes 256 MB and reads them
def test_an_object_may_be_larger_than_memory(store_place: StorePlace) -> None:
    """256 MB where 128 MB more may be used than there was at the beginning."""
    size = 256 << 20
    with child(_SMALL, store_place, size, 128 << 20) as writer:
        answer = said(writer)
        assert writer.wait(60) == 0
    assert answer == _sum_of(size)


def _sum_of(size: int) -> str:
    found, part = hashlib.sha256(), bytes(range(256)) * 1024
    for _ in range(size // len(part)):
        found.update(part)
    return found.hexdigest()


def test_a_folder_has_nothing_else_in_it(tmp_path: Path) -> None:
    """After a put; two of the same; one that failed; marks that were set twice."""
    store = StorePlace((tmp_path / "store").as_uri(), None, {}).open()
    store.put("a/b", b"x")
    store.put("a/b", b"y")
    store.mark("a/b")
    store.mark("a/b")
    with pytest.raises(ZeroDivisionError):
        store.put_stream("c", (bytes([1 // zero]) for zero in (1, 0)))
    files = [path.relative_to(tmp_path / "store") for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert sorted(map(str, files)) == ["marks/a/b", "objects/a/b"]


def test_what_others_put_among_the_unfinished_stays(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "unfinished" / "essay.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "unfinished" / "tmpabcdefgh").write_text("ours", encoding="utf-8")
    assert store.clear(0) == 1
    assert [path.name for path in (tmp_path / "unfinished").iterdir()] == ["essay.txt"]
