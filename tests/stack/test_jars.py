"""The jars: the lock is read strictly, what arrives is checked, what is torn or missing is fetched again, and only
that.
"""

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.stack import jars, java
from tests.support.coded import raises
from tests.support.rooms import ROOT

CONTENT = {"one": b"the first jar", "two": b"the second jar"}
# Stands for `java -cp ivy.jar ...`: reads the ivy.xml that it is given and delivers those files of its shop that are
# asked for.
COURIER = """#!/bin/sh
echo call >> '{shop}/calls'
while [ $# -gt 0 ]; do
  case "$1" in -ivy) ivy="$2";; -retrieve) out="${{2%/*}}";; esac
  shift
done
mkdir -p "$out"
for name in one two; do
  if grep -q "name=\\"$name\\"" "$ivy" && [ -f "{shop}/$name" ]; then
    cp "{shop}/$name" "$out/$name-1.0.jar"
    echo "[SUCCESSFUL ] $name"
  fi
done
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the jars, a courier and a lock that pins them."""
    folder = tmp_path / "shop"
    folder.mkdir()
    lines = []
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
        lines.append(f"test {hashlib.sha256(content).hexdigest()} org.example:{name}:1.0")
    (folder / "jars.lock").write_text("# pinned\n" + "\n".join(lines) + "\n", encoding="utf-8")
    (folder / "java").write_text(COURIER.format(shop=folder), encoding="utf-8")
    (folder / "java").chmod(0o755)
    monkeypatch.setattr(jars, "LOCK_FILE", folder / "jars.lock")
    return folder


def calls(shop: Path) -> int:
    """How often the courier was sent."""
    file = shop / "calls"
    return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0


def test_the_lock_of_the_product_pins_every_jar_once_a_group() -> None:
    pinned = jars.read_lock(jars.LOCK_FILE.read_text(encoding="utf-8"))
    assert {jar.group for jar in pinned} == {"broker", "peers", "spark", "s3"}
    for group in ("broker", "peers", "spark", "s3"):
        names = [jar.name for jar in pinned if jar.group == group]
        assert len(names) == len(set(names))
    brought_by_pyspark = ("hadoop-client", "scala-library", "slf4j-api", "org.lz4")
    spark = [jar for jar in pinned if jar.group == "spark"]
    assert not [jar for jar in spark if jar.name.startswith(brought_by_pyspark) or jar.organisation == "org.lz4"]


def test_one_file_name_means_one_content_in_all_groups() -> None:
    by_name: dict[str, set[str]] = {}
    for jar in jars.read_lock(jars.LOCK_FILE.read_text(encoding="utf-8")):
        by_name.setdefault(jar.file_name, set()).add(jar.sha256)
    assert all(len(sums) == 1 for sums in by_name.values())


@pytest.mark.parametrize("line", ["broker abc a:b:1", f"broker {'0' * 64} a:b", f"broker {'0' * 64}", "nonsense"])
def test_a_line_that_is_no_line_of_the_lock_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"jars\.lock"):
        jars.read_lock(line)


def test_jars_arrive_once_and_a_second_look_fetches_nothing(shop: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    paths = jars.ensure("test", tmp_path, shop / "java", lambda done, total: told.append((done, total)))
    assert [path.read_bytes() for path in paths] == list(CONTENT.values())
    assert told[-1] == (2, 2)
    assert jars.ensure("test", tmp_path, shop / "java") == paths
    assert calls(shop) == 1


def test_jars_of_several_groups_arrive_by_one_run_and_each_group_is_complete(shop: Path, tmp_path: Path) -> None:
    lock = jars.LOCK_FILE.read_text(encoding="utf-8")
    jars.LOCK_FILE.write_text(re.sub(r"test (\w+ org\.example:two)", r"other \1", lock), encoding="utf-8")
    both = jars.ensure("test other", tmp_path, shop / "java")
    assert [path.read_bytes() for path in both] == list(CONTENT.values())
    assert [jars.ensure(group, tmp_path, shop / "java") for group in ("test", "other")] == [[path] for path in both]
    assert calls(shop) == 1


@pytest.mark.parametrize("harm", ["truncate", "remove", "change"])
def test_a_damaged_jar_is_fetched_again_and_only_that_one(harm: str, shop: Path, tmp_path: Path) -> None:
    first, second = jars.ensure("test", tmp_path, shop / "java")
    kept, before = second.stat(), calls(shop)
    match harm:
        case "truncate":
            first.write_bytes(b"")
        case "remove":
            first.unlink()
        case "change":
            first.write_bytes(b"the WRONG jar")
    jars.ensure("test", tmp_path, shop / "java")
    assert first.read_bytes() == CONTENT["one"]
    assert second.stat().st_mtime_ns == kept.st_mtime_ns
    assert calls(shop) == before + 1


def test_a_jar_with_other_content_than_pinned_is_thrown_away(shop: Path, tmp_path: Path) -> None:
    (shop / "two").write_bytes(b"something else")
    with raises(UserError, Code.JARS_MISSING):
        jars.ensure("test", tmp_path, shop / "java")
    assert not (tmp_path / "jars" / "two-1.0.jar").exists()


def test_without_a_network_the_error_says_what_to_do(shop: Path, tmp_path: Path) -> None:
    (shop / "one").unlink()
    with raises(UserError, Code.JARS_MISSING) as caught:
        jars.ensure("test", tmp_path, shop / "java")
    assert jars.SETTINGS_VARIABLE in caught.value.hint


def test_what_did_arrive_is_kept_when_something_else_did_not(shop: Path, tmp_path: Path) -> None:
    (shop / "one").unlink()
    with pytest.raises(UserError):
        jars.ensure("test", tmp_path, shop / "java")
    assert (tmp_path / "jars" / "two-1.0.jar").read_bytes() == CONTENT["two"]
    assert not list((tmp_path / "jars").glob(".fetch-*"))


def test_the_image_has_what_fetching_imports(tmp_path: Path) -> None:
    """Its stage copies single files, so that a change of another one fetches nothing anew."""
    dockerfile = (ROOT / "images" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    stage = dockerfile.partition("AS jars\n")[2].partition("\nFROM ")[0]
    for copied in re.findall(r"^COPY (.*) /build/(onefold/\S*)$", stage, re.MULTILINE):
        folder = tmp_path / copied[1]
        folder.mkdir(parents=True, exist_ok=True)
        for file in copied[0].split():
            shutil.copy(ROOT / file, folder)
    command = [sys.executable, "-S", "-c", "import onefold.stack.jars"]
    ran = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow  # starts a JVM
def test_two_versions_of_one_module_are_both_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the real Ivy: broker and Spark each have their own version of Kafka's client."""
    wanted, shop, folder = [], tmp_path / "shop", tmp_path / "jars"
    folder.mkdir()
    for group, version in (("broker", "2.0"), ("spark", "1.0")):
        place = shop / "org" / "example" / "client" / version
        place.mkdir(parents=True)
        (place / f"client-{version}.jar").write_bytes(version.encode())
        wanted.append(jars.Jar(group, hashlib.sha256(version.encode()).hexdigest(), "org.example", "client", version))
    settings = tmp_path / "settings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="shop"/><resolvers><ibiblio name="shop" m2compatible="true" '
        f'usepoms="false" root="{shop.as_uri()}/"/></resolvers></ivysettings>',
        encoding="utf-8",
    )
    monkeypatch.setenv(jars.SETTINGS_VARIABLE, str(settings))
    jars.fetch(wanted, folder, java.locate(tmp_path / "cache").executable, lambda done, total: None)
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.jar")} == {
        "client-1.0.jar": "1.0",
        "client-2.0.jar": "2.0",
    }
