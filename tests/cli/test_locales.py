"""A locale that is not UTF-8 changes no text and no name of a file."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from tests.support.coded import code_of

pytestmark = [pytest.mark.promise("locales"), pytest.mark.slow]  # starts a process a test

#: A folder that Latin-1, ASCII, a shell and a URI each take for another one.
FOLDER = "größe mit leer 50%"
SCHEMA = {
    "type": "record", "name": "In", "namespace": "lat", "topics": ["lat.in"],
    "fields": [{"name": "city", "type": "string", "default": "Zürich"}, {"name": "id", "type": "string"}],
}  # fmt: skip
MERGE = """INSERT INTO lat."out" (land, id) SELECT 'Österreich', id FROM :stage"""
# What processor, sink, judge and `explain` have read from the files of a pipeline, each by a reader of its own.
READ = """
import json, sys
from pathlib import Path
from onefold.processor.io import contracts
from onefold.verify.contracts import load
from onefold.spark_sink.contracts import load_domain
folder = Path(sys.argv[1])
sink = load_domain("lat", folder / "avro", folder / "sql")
schemas = [
    json.loads(sink.contracts["lat.in"].schema), contracts.load(folder / "avro")["lat.in"].schema,
    load(folder / "avro")["lat.in"].schema,
]
print(json.dumps([[schema["fields"][0]["default"] for schema in schemas], "".join(sink.targets["lat.in"].merge)]))
"""


@pytest.fixture(scope="session")
def latin_locale(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a German locale with the charset ISO-8859-1, made of the machine's own sources."""
    folder = tmp_path_factory.mktemp("locales")
    compiler = shutil.which("localedef")
    if compiler is None or not Path("/usr/share/i18n/locales/de_DE").exists():
        pytest.skip("this machine cannot make a locale: localedef, or its sources, are missing")
    subprocess.run([compiler, "-i", "de_DE", "-f", "ISO-8859-1", folder / "de_DE.ISO-8859-1"], check=True)
    return {"LOCPATH": str(folder), "LC_ALL": "de_DE.ISO-8859-1"}


@pytest.fixture(params=["C", "ISO-8859-1"])
def foreign(request: pytest.FixtureRequest) -> dict[str, str]:
    """The variables of a process whose text is ASCII, or Latin-1."""
    of_text = ("LC_", "LANG", "ONEFOLD_", "PYTHONUTF8", "PYTHONIOENCODING")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(of_text)}
    plain |= {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    return plain | ({"LC_ALL": "C"} if request.param == "C" else request.getfixturevalue("latin_locale"))


def onefold(*words: str, environment: dict[str, str], folder: Path) -> "subprocess.CompletedProcess[bytes]":
    """What a command prints, byte for byte."""
    command = [sys.executable, "-P", "-m", "onefold.cli.main", *words]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=False, timeout=60)


def test_defaults_of_contracts_and_literals_of_statements_are_what_the_files_say(
    foreign: dict[str, str], tmp_path: Path
) -> None:
    """Mojibake would be in every row, and the judge would have read the same."""
    for folder in ("avro", "sql/merge"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "avro" / "lat.in.avsc").write_text(json.dumps(SCHEMA, ensure_ascii=False), encoding="utf-8")
    (tmp_path / "sql" / "merge" / "lat.in.sql").write_text(MERGE, encoding="utf-8")
    read = subprocess.run([sys.executable, "-P", "-c", READ, tmp_path], env=foreign, capture_output=True, check=True)
    defaults, merge = json.loads(read.stdout)

    assert defaults == ["Zürich"] * 3
    assert "'Österreich'" in merge


def test_a_project_in_a_folder_of_any_name_is_made_and_checked(foreign: dict[str, str], tmp_path: Path) -> None:
    """And the name is shown as it is: in UTF-8, as a file of settings or a script would hold it."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    made, checked, shown = (
        onefold(*words, environment=foreign, folder=folder) for words in (("new", "shop"), ("check",), ("config",))
    )

    assert [ran.returncode for ran in (made, checked, shown)] == [0, 0, 0], made.stderr + checked.stderr + shown.stderr
    assert checked.stdout == b"shop: nothing is wrong\n"
    assert f"ONEFOLD_HOME={folder}/.onefold " in shown.stdout.decode()


def test_an_argument_in_another_charset_is_one_sentence(foreign: dict[str, str], tmp_path: Path) -> None:
    ran = onefold("verify", "z\udcfcrich", environment=foreign, folder=tmp_path)

    assert ran.returncode == USAGE
    assert code_of(ran.stderr.decode(), r"z\udcfcrich") is Code.PIPELINE_UNKNOWN


def test_a_statement_in_another_charset_is_named(tmp_path: Path) -> None:
    """By `check`, before a row is written."""
    made = onefold("new", "shop", environment={**os.environ}, folder=tmp_path)
    assert made.returncode == 0, made.stderr
    file = tmp_path / "sql" / "merge" / "shop.totals.sql"
    file.write_bytes(b"-- Gr\xfc\xdfe\n" + file.read_bytes())
    checked = onefold("check", environment={**os.environ}, folder=tmp_path)

    assert checked.returncode == USAGE
    assert (
        f"{file} is not text in UTF-8, from byte 5 on: save it in UTF-8"
        in checked.stdout.decode() + checked.stderr.decode()
    )
