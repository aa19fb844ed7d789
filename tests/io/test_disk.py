"""Files of states: what a task needs of them, on RocksDB and on the simulated ones alike; and what only real files can suffer."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from onefold.error_codes import Code
from onefold.processor.core.abc import Disk
from onefold.processor.core.errors import Damaged, Refused
from onefold.processor.io.state_files import RocksDisk
from tests.support.coded import raises
from tests.support.simulated_disk import SimulatedDisk, SimulatedFiles

MEMORY = 8 << 20


@pytest.fixture(params=["rocksdb", "simulated"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Disk]:
    """What makes a disk on the same files, as a process of its own would."""
    if request.param == "rocksdb":
        return lambda: RocksDisk(tmp_path / "states", 3, MEMORY)
    files = SimulatedFiles()
    return lambda: SimulatedDisk(files, "states/3")


def test_what_was_written_is_there_for_the_next(make: Callable[[], Disk]) -> None:
    disk = make()
    assert not disk.exists()
    engine = disk.open()
    engine.write([(b"s1", b"one"), (b"s2", b"two"), (b"c", b"here"), (b"s1", b"uno")])
    engine.write([(b"s2", None), (b"s3", b"three"), (b"never", None)])
    engine.close()
    engine.close()
    disk.close()

    disk = make()
    assert disk.exists()
    engine = disk.open()
    assert [engine.get(key) for key in (b"s1", b"s2", b"s3", b"c", b"x")] == [b"uno", None, b"three", b"here", None]
    assert list(engine.items(b"s")) == [(b"s1", b"uno"), (b"s3", b"three")]
    engine.close()
    disk.clear()
    assert not disk.exists()
    assert list(disk.open().items(b"")) == []


def test_items_are_those_of_the_moment(make: Callable[[], Disk]) -> None:
    """A tick goes through them one by one."""
    engine = make().open()
    engine.write([(b"s%02d" % at, b"old") for at in range(50)])
    items = engine.items(b"s")
    first = next(items)
    engine.write([(b"s%02d" % at, b"new") for at in range(60)])

    assert [first, *items] == [(b"s%02d" % at, b"old") for at in range(50)]


@pytest.mark.promise("one-owner-of-state-files")
def test_two_never_have_the_same_files(make: Callable[[], Disk]) -> None:
    """The second one gets files of its own, and who comes after both those of the first."""
    first, second = make(), make()
    engine = first.open()
    engine.write([(b"s", b"first")])
    assert not second.exists()
    other = second.open()
    other.write([(b"s", b"second")])
    assert engine.get(b"s") == b"first"
    engine.close()
    first.close()
    other.close()
    second.close()

    assert make().open().get(b"s") == b"first"


@pytest.mark.parametrize("there", [False, True], ids=["new", "of an older Onefold"])
def test_nobody_else_reads_states(there: bool, tmp_path: Path) -> None:
    """Also where a processor is started by hand, in a folder that all may read."""
    folder = tmp_path / "runner"
    if there:
        folder.mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        disk = RocksDisk(folder, 0, 1 << 26)
        disk.open().close()
        disk.close()
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_is_left_beside_is_deleted(tmp_path: Path) -> None:
    first, second = (RocksDisk(tmp_path, 0, MEMORY) for _ in range(2))
    for disk in (first, second):
        disk.open().close()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"0", "0.1"}
    for disk in (first, second):
        disk.close()
    RocksDisk(tmp_path, 0, MEMORY).exists()

    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"0"}


def filled(folder: Path) -> Path:
    """The folder of an engine with some states, closed."""
    disk = RocksDisk(folder, 0, MEMORY)
    engine = disk.open()
    engine.write([(b"s%05d" % at, os.urandom(200)) for at in range(5_000)])
    engine.close()
    disk.close()
    return folder / "0"


def shortened(path: Path) -> None:
    for file in path.glob("*.sst"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def scribbled(path: Path) -> None:
    for file in path.glob("*.sst"):
        data = bytearray(file.read_bytes())
        data[100:2_000] = bytes(1_900)
        file.write_bytes(data)


def without_a_manifest(path: Path) -> None:
    for file in path.glob("MANIFEST*"):
        file.write_bytes(b"junk")


def foreign(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()
    (path / "CURRENT").write_text("something else", encoding="utf-8")


def no_folder(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    path.write_text("a file", encoding="utf-8")


def read_all(disk: RocksDisk) -> None:
    with closing(disk.open()) as engine:
        list(engine.items(b""))


@pytest.mark.promise("damaged-state-files")
@pytest.mark.parametrize("harm", [shortened, scribbled, without_a_manifest, foreign, no_folder])
def test_torn_and_foreign_files_are_noticed(harm: Callable[[Path], None], tmp_path: Path) -> None:
    """By the engine itself, when it is opened or when it gets there; and they can be made anew."""
    harm(filled(tmp_path))
    disk = RocksDisk(tmp_path, 0, MEMORY)
    assert disk.exists()
    with raises(Damaged, Code.STATES_DAMAGED):
        read_all(disk)
    disk.clear()

    assert list(disk.open().items(b"")) == []


def test_a_folder_that_cannot_be_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with raises(Refused, Code.STATES_FOLDER, "ONEFOLD_STATE_HOME"):
        RocksDisk(tmp_path / "file" / "states", 0, MEMORY).exists()


WRITES = textwrap.dedent("""
    import itertools, sys
    from pathlib import Path
    from onefold.processor.io.state_files import RocksDisk
    engine = RocksDisk(Path(sys.argv[1]), 0, 8 << 20).open()
    for number in itertools.count(1):
        told = b"%d" % number
        engine.write([(b"s%03d" % at, told * 50) for at in range(500)] + [(b"c", told)])
        print(number, flush=True)
""")


def test_a_process_that_is_killed_while_it_writes_leaves_whole_transactions(tmp_path: Path) -> None:
    """All that was written before it was killed is there, and of the last write all or nothing."""
    last = 0
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for line in child.stdout:
                last = int(line)
                if last == 40:
                    break
            child.send_signal(signal.SIGKILL)
            last = max([last, *map(int, child.stdout.read().split())])
        disk = RocksDisk(tmp_path, 0, MEMORY)
        engine = disk.open()
        told = engine.get(b"c") or b""
        assert last <= int(told) <= last + 1
        assert {value for _, value in engine.items(b"s")} == {told * 50}
        engine.close()
        disk.close()
