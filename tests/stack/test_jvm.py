"""A JVM that does not start says why, whatever it was to do; and what each JVM is told in Java's own writing."""

import signal
from pathlib import Path

import pytest

from onefold import jvm
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured
from onefold.stack import jars, java
from onefold.stack.broker import Broker
from tests.support.coded import raises

pytestmark = pytest.mark.promise("java-that-does-not-start")

NOT_CREATED = (
    "Error: Could not create the Java Virtual Machine.\nError: A fatal exception has occurred. Program will exit.\n"
)
OUT_OF_MEMORY = """OpenJDK 64-Bit Server VM warning: INFO: os::commit_memory(0x0, 9, 0) failed; error='Not enough space'
#
# There is insufficient memory for the Java Runtime Environment to continue.
# Native memory allocation (mmap) failed to map 96636764160 bytes. Error detail: committing reserved memory.
# An error report file with more information is saved as:
# /home/one/hs_err_pid5321.log
"""
TRACE = """WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" java.lang.ExceptionInInitializerError
\tat kafka.Kafka.main(Kafka.scala:99)
Caused by: java.lang.RuntimeException: no such disk
\tat java.base/java.lang.Thread.run(Thread.java:840)
\t... 2 more
"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (f"Invalid maximum heap size: -Xmx1z\n{NOT_CREATED}", "Invalid maximum heap size: -Xmx1z"),
        (f"Picked up JAVA_TOOL_OPTIONS: -XX:Bad\nUnrecognized option: -Bad\n{NOT_CREATED}", "Unrecognized option: -Bad"),
        (
            "Error occurred during initialization of VM\nCould not reserve enough space for 655360KB object heap\n",
            "Error occurred during initialization of VM; Could not reserve enough space for 655360KB object heap",
        ),
        (
            OUT_OF_MEMORY,
            ("There is insufficient memory for the Java Runtime Environment to continue; Native memory allocation (mmap) "
             "failed to map 96636764160 bytes. Error detail: committing reserved memory"),
        ),
        (
            TRACE,
            ('Exception in thread "main" java.lang.ExceptionInInitializerError; '
             "Caused by: java.lang.RuntimeException: no such disk"),
        ),
    ],
)  # fmt: skip
def test_the_cause_is_taken_from_what_a_jvm_prints(said: str, words: str) -> None:
    assert jvm.last_words(said, 1) == words


def test_a_jvm_that_says_nothing_ends_with_how_it_ended() -> None:
    assert jvm.last_words("", -signal.SIGKILL) == "its JVM was killed by signal 9 and said nothing"
    assert (
        jvm.last_words("Picked up _JAVA_OPTIONS: -Xmx1g\n", 137) == "its JVM ended with exit code 137 and said nothing"
    )


@pytest.fixture
def found(tmp_path: Path) -> java.Java:
    """A Java that works, until JAVA_TOOL_OPTIONS says otherwise."""
    return java.locate(tmp_path / "cache")


@pytest.fixture(params=["-XX:NoSuchOption", "-agentlib:nosuchagent"])
def complaint(request: pytest.FixtureRequest, found: java.Java, monkeypatch: pytest.MonkeyPatch) -> str:
    """What no JVM starts with from now on, as it names it: one is said on stderr, the other on stdout."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", request.param)
    return str(request.param).removeprefix("-XX:").removeprefix("-agentlib:")


def test_looking_for_java_says_why_none_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a script without a file `release`, which is asked for its version."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'Unrecognized option: -Bad'\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(java, "_packaged", lambda: None)
    with raises(UserError, Code.JAVA_UNUSABLE, "Unrecognized option: -Bad") as caught:
        java.locate(tmp_path / "cache", {"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert caught.value.message.startswith("Java does not start: ")
    assert "JAVA_TOOL_OPTIONS" in caught.value.hint


def test_a_java_that_may_not_be_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/nowhere\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(java, "_packaged", lambda: None)

    with raises(UserError, Code.JAVA_UNUSABLE, str(program)):
        java.locate(tmp_path / "cache", {"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_the_broker_says_why(complaint: str, found: java.Java, tmp_path: Path) -> None:
    with raises(UserError, Code.SERVICE_FAILED, complaint):
        Broker(tmp_path / "kafka", 1, 2, found.executable, [jars._ivy_jar()]).prepare()


def test_the_download_of_jars_says_why(complaint: str, found: java.Java, tmp_path: Path) -> None:
    """And blames no repository."""
    with raises(UserError, Code.JAVA_UNUSABLE, complaint):
        jars.ensure("broker", tmp_path / "empty", found.executable)


@pytest.mark.spark
def test_spark_says_why(complaint: str, found: java.Java, tmp_path: Path) -> None:
    from onefold.spark_sink.spark import session

    with raises(Misconfigured, Code.SPARK_NOT_STARTED, complaint):
        session.Driver([], str(found.spark_home), tmp_path / "scratch").start()


@pytest.mark.spark
def test_spark_says_why_where_only_its_own_options_are_wrong(
    found: java.Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onefold.spark_sink.spark import options, session

    monkeypatch.setattr(options, "JVM", ("-Xms1z",))

    with pytest.raises(Misconfigured, match="Invalid initial heap size: -Xms1z"):
        session.Driver([], str(found.spark_home), tmp_path / "scratch").start()


def test_properties_are_written_as_java_reads_them() -> None:
    """One line each, whatever is in it."""
    assert jvm.as_properties({"a": "plain=#!:", "b": " \\n\n"}) == "a=plain=#!:\nb=\\u0020\\u005cn\\u000a\n"
    assert jvm.as_properties({"c": "ü\N{GRINNING FACE}"}) == "c=\\u00fc\\ud83d\\ude00\n"
    written = Broker(Path("/größe mit leer"), 1, 2, Path("java"), []).configuration(Path("/größe mit leer/data"))
    assert "log.dirs=/gr\\u00f6\\u00dfe\\u0020mit\\u0020leer/data\n" in written


def test_a_folder_that_java_cuts_in_two_is_refused(found: java.Java, tmp_path: Path) -> None:
    """A comma ends a folder's name in a list, a colon in a class path; neither can be escaped."""
    from onefold.spark_sink.spark import options

    with raises(UserError, Code.FOLDER_UNUSABLE):
        Broker(tmp_path / "a,b", 1, 2, found.executable, []).prepare()
    with raises(Misconfigured, Code.SPARK_NOT_STARTED):
        options.options([], tmp_path / "a,b")
    with raises(UserError, Code.FOLDER_UNUSABLE):
        jars.ensure("spark", tmp_path / "a:b", found.executable)
    assert [*tmp_path.glob("a*")] == [], "nothing was made"


def test_every_jvm_has_its_temporary_files_in_our_folder(tmp_path: Path) -> None:
    """/tmp may forbid that a library is loaded from it. What cannot be made is left to the JVM."""
    from onefold.spark_sink.spark import options

    broker = Broker(tmp_path / "kafka", 1, 2, Path("java"), [])
    for command in (broker.command(), broker.tool("kafka.tools.X")):
        assert f"-Djava.io.tmpdir={tmp_path}/kafka/tmp" in command
    assert (tmp_path / "kafka" / "tmp").is_dir()
    asked = options.options([], tmp_path / "größe mit leer")
    assert f"'-Djava.io.tmpdir={tmp_path}/größe mit leer/tmp'" in asked["spark.driver.defaultJavaOptions"]
    assert (tmp_path / "größe mit leer" / "tmp").is_dir()
    (tmp_path / "file").write_bytes(b"")
    assert jvm.temporary(tmp_path / "file" / "tmp") == ()


def test_what_a_killed_jvm_left_in_it_is_removed(found: java.Java, tmp_path: Path) -> None:
    from onefold.spark_sink.spark import options

    left = tmp_path / "tmp" / "libzstd-jni-1.so"
    left.parent.mkdir()
    left.write_bytes(b"library")
    options.options([], tmp_path)
    assert left.exists(), "the folder is somebody else's so far"
    options.options([], tmp_path)
    assert not left.exists()
    assert [*left.parent.iterdir()] == []
