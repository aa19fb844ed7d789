"""Each rule of `onefold lint` finds a fault that was put there; an empty list could also mean that nobody looked."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lint import code, documents
from tests.lint.__main__ import IMPORTS
from tests.lint.source import Source
from tests.support.rooms import ROOMS, ROOT

pytestmark = pytest.mark.slow  # reads the whole checkout

PLANTED = "operate/planted.py"
MODULE = '"""A module."""\n'
README, OPERATING = "README.md", "docs/operating.md"


@pytest.fixture(scope="module")
def source() -> Source:
    return Source()


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "src", *ROOMS):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.long  # 27 s
@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (code.banned_texts, "# TODO later"),
        (code.banned_texts, "run(['pkill', 'java'])"),
        (code.banned_texts, "from unittest.mock import patch"),
        (code.circles, "import onefold.operate.planted"),
        (code.second_names, "import processor.core.fold"),
        (code.faults_on_purpose, "from onefold.chaos import failpoint"),
        (code.readers_of_the_ledger, "QUERY = 'SELECT * FROM onefold.ledger'"),
        (code.exit_codes, "sys.exit(3)"),
        (code.exit_codes, "UserError('x', exit_code=2 if a else 69)"),
        (code.named_pipelines, "NAME = 'campaigns'"),
        (code.makers_of_kafka_clients, "from confluent_kafka import Producer as P\nP({})"),
        (code.makers_of_kafka_clients, "import confluent_kafka.admin\nconfluent_kafka.admin.AdminClient({})"),
        (code.names_that_nobody_holds, "HINT = 'pip install onefold[s3]'"),
        (code.askers_of_the_controller, "admin.describe_topics([])"),
        (code.openers_of_sessions, "import psycopg\npsycopg.connect('')"),
        (code.openers_of_sessions, "from psycopg_pool import ConnectionPool"),
        *((code.encodings_of_the_locale, line) for line in (
            "self.path.read_text()", "found.path.write_text(text)", "open(name)", "open(name, 'w')", "self.log.open('a')",
            "os.fdopen(number, 'w')", "gzip.open(name, 'rt')", "NamedTemporaryFile('w')", "NamedTemporaryFile(mode='w+')",
            "subprocess.run(command, text=True)", "Popen(command, universal_newlines=True)", "io.TextIOWrapper(raw)",
        )),
        (code.types_that_are_not_checked, "x: int = ''  # type: ignore"),
        (code.types_that_are_not_checked, "x: int = ''  # type: ignore[assignment]"),
        (documents.pages_in_messages, "HINT = 'see docs/operating.md'"),
        (documents.pages_in_messages, "HINT = 'Read: `onefold docs nowhere`'"),
    ],
)  # fmt: skip
def test_a_planted_line_is_found(rule: Callable[[Source], Iterator[str]], text: str, source: Source) -> None:
    """In a module of the product."""
    assert [line for line in rule(source.over(PLANTED, f"{MODULE}{text}\n")) if "planted" in line], text


@pytest.mark.parametrize(
    "line",
    [
        "path.read_text('utf-8')", "path.write_text(text, encoding='utf-8')", "open(name, 'rb')", "page.open('/sheets')",
        "publisher.open()", "NamedTemporaryFile()", "subprocess.run(command, encoding='utf-8')", "open(STAMP, **NAMES)",
    ],
)  # fmt: skip
def test_bytes_and_named_encodings_are_no_fault(line: str, source: Source) -> None:
    assert list(code.encodings_of_the_locale(source.over(PLANTED, f"{MODULE}{line}\n"))) == []


@pytest.mark.long  # 26 s
@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        (code.sleeping_tests, "tests/core/test_planted.py", f"{MODULE}time.sleep(1)"),
        (code.files_that_say_nothing, PLANTED, "X = 1"),
        (code.files_that_say_nothing, "sql/planted.sql", "SELECT 1"),
        (code.pins, "requirements.lock", "ruff==1\n"),
        (documents.verbs, README, "`onefold nothing`"),
        (documents.options, README, "`onefold up --nothing`"),
        (documents.passwords_in_arguments, README, "`onefold sql postgresql://me:secret@host/db`"),
        (documents.settings, OPERATING, "`ONEFOLD_NOTHING`"),
        (documents.variables_of_compose, "docker-compose.yml", "${NOTHING:-1}"),
        (documents.names_in_merges, "sql/merge/planted.sql", "-- x\nINSERT INTO t SELECT * FROM :stage"),
        (documents.links_and_files, README, "[x](nowhere.md)"),
        (documents.links_and_files, README, "`processor/nowhere.py`"),
        (documents.readme, README, "\n" * 200),
        (documents.public_names, "docs/api.md", ""),
        (documents.promised_tests, "docs/promises.md", ""),
        (documents.promised_tests, README, "`test_of_nothing`"),
    ],
)
def test_a_planted_file_is_found(rule: Callable[[Source], Iterator[str]], name: str, text: str, source: Source) -> None:
    """In the place of another one, or beside the others."""
    assert set(rule(source.over(name, text))) - set(rule(source))


@pytest.mark.parametrize(
    ("name", "text", "contract"),
    [
        ("processor/core/planted.py", "import time", "no clock, no chance"),
        ("processor/runtime/planted.py", "import threading", "handed in"),
        ("processor/apps/planted.py", "import onefold.processor.core.fold", "public names alone"),
        ("operate/planted.py", "import onefold.stack", "never what is above"),
        ("dashboard/planted.py", "import onefold.chaos", "never what is above"),
        ("processor/io/planted.py", "import onefold.processor.service", "parts of the processor"),
        ("spark_sink/landing/planted.py", "import onefold.spark_sink.spark", "parts of the sink"),
        ("proof/planted.py", "import onefold.spark_sink.errors", "shares no code"),
        ("processor/core/planted.py", "import onefold.names", "the core knows nobody"),
        ("operate/planted.py", "import pyspark", "one door to Spark"),
        ("cli/planted.py", "import confluent_kafka", "one door to Kafka"),
        ("processor/io/planted.py", "import psycopg", "know no PostgreSQL"),
        ("operate/planted.py", "import rocksdict", "smaller library"),
    ],
)
def test_a_planted_import_breaks_its_contract(name: str, text: str, contract: str, copied: Path) -> None:
    """In a copy of the product: others look at the checkout meanwhile."""
    (copied / name).write_text(f"{MODULE}{text}\n", encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, *IMPORTS], cwd=copied, capture_output=True, encoding="utf-8", timeout=120,
        env={**os.environ, "PYTHONPATH": str(copied / "src")},
    )  # fmt: skip
    (copied / name).unlink()

    assert ran.returncode == 1, ran.stdout + ran.stderr
    broken = [line for line in ran.stdout.splitlines() if "BROKEN" in line]
    assert any(contract in line for line in broken), ran.stdout
