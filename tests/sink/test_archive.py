"""Which archive of classes a JVM is given, and that one which is no good costs nothing but time."""

import os
import subprocess
from pathlib import Path

import pytest

from onefold import class_archive
from onefold.spark_sink.spark import archive
from onefold.stack import java

pytestmark = pytest.mark.promise("class-archives")


def java_home(folder: Path) -> str:
    base = folder / "java" / "lib" / "server" / "classes.jsa"
    base.parent.mkdir(parents=True)
    base.write_bytes(b"base")
    return str(folder / "java")


def test_another_jar_or_java_has_another_archive(tmp_path: Path) -> None:
    """Also when only a time differs: by that the JVM itself would refuse the file."""
    home, jar = java_home(tmp_path), tmp_path / "kafka.jar"
    jar.write_bytes(b"one")
    found = {archive.place(tmp_path, [jar], home)}
    jar.write_bytes(b"other")
    found.add(archive.place(tmp_path, [jar], home))
    os.utime(jar, (1, 1))
    found.add(archive.place(tmp_path, [jar], home))
    os.utime(Path(home) / "lib/server/classes.jsa", (1, 1))
    found |= {archive.place(tmp_path, [jar], home), archive.place(tmp_path, [], home)}

    assert len(found) == 5
    assert archive.place(tmp_path, [jar], home) in found, "the same question has the same answer"


def test_a_java_without_classes_of_its_own_has_none(tmp_path: Path) -> None:
    assert archive.place(tmp_path, [], str(tmp_path)) is None
    assert class_archive.uses(None) == ()


def test_it_is_used_when_it_is_there_and_then_counts_as_used(tmp_path: Path) -> None:
    file = tmp_path / "one.jsa"
    assert class_archive.uses(file) == ()
    file.write_bytes(b"")
    os.utime(file, (1, 1))
    assert f"-XX:SharedArchiveFile={file}" in class_archive.uses(file)
    assert file.stat().st_mtime > 1


def test_those_that_were_used_last_are_kept(tmp_path: Path) -> None:
    for day, name in enumerate("abcd", start=1):
        (tmp_path / f"{name}.jsa").write_bytes(b"")
        os.utime(tmp_path / f"{name}.jsa", (day, day))
    draft = tmp_path / "draft"
    draft.write_bytes(b"new")
    class_archive.keep(draft, tmp_path / "e.jsa")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsa", "d.jsa", "e.jsa"]


def test_what_a_killed_maker_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{class_archive.DRAFTS}x").mkdir()
    (tmp_path / f"{class_archive.DRAFTS}x" / "classes").write_bytes(b"half")
    (tmp_path / "one.jsa").write_bytes(b"")
    class_archive.clear_drafts(tmp_path / "one.jsa")

    assert [path.name for path in tmp_path.iterdir()] == ["one.jsa"]


@pytest.mark.parametrize("content", ["garbage", "torn", "foreign"])
def test_a_jvm_goes_on_in_silence_without_one_that_is_no_good(content: str, tmp_path: Path) -> None:
    """Foreign: of another kind, as one of another version would be; torn: its first half."""
    found = java.locate(tmp_path)
    base = found.spark_home / "lib" / "server" / "classes.jsa"
    if content != "garbage" and not base.exists():
        pytest.skip("this Java has no archive of its own to take a piece of")
    file = tmp_path / "one.jsa"
    if content == "garbage":
        file.write_bytes(os.urandom(100_000))
    else:
        whole = base.read_bytes()
        file.write_bytes(whole if content == "foreign" else whole[: len(whole) // 2])
    command = [str(found.executable), *class_archive.uses(file), "-version"]
    plain = subprocess.run([found.executable, "-version"], capture_output=True, encoding="utf-8", check=True)
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)

    assert ran.stdout == ""
    assert ran.stderr.splitlines()[0] == plain.stderr.splitlines()[0]
    assert len(ran.stderr.splitlines()) == len(plain.stderr.splitlines()), ran.stderr
