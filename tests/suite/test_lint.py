"""Each rule of `onefold lint` finds a fault that was put there; an empty list could also mean that nobody looked."""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.lint import code, documents, pages
from tests.lint.__main__ import IMPORTS
from tests.lint.source import Source
from tests.support.rooms import LINKED, ROOT

pytestmark = pytest.mark.slow  # reads the whole checkout

PLANTED = "src/onefold/operate/planted.py"
MODULE = '"""A module."""\n'
README, SETTINGS = "README.md", "docs/settings.md"
Rule = Callable[[Source], Iterator[str]]
LINES: list[tuple[Rule, str]] = [
    (code.banned_texts, "# TODO later"),
    (code.banned_texts, "run(['pkill', 'java'])"),
    (code.banned_texts, "from unittest.mock import patch"),
    (code.circles, "import onefold.operate.planted"),
    (code.second_names, "import processor.core.fold"),
    (code.faults_on_purpose, "from onefold.chaos import failpoint"),
    (code.readers_of_the_ledger, "QUERY = 'SELECT * FROM onefold.ledger'"),
    (code.exit_codes, "sys.exit(3)"),
    (code.exit_codes, "UserError('x', exit_code=2 if a else 69)"),
    (code.coded_rejections, "Rejected('x')"),
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
]  # fmt: skip
NO_FAULTS = [
    "path.read_text('utf-8')", "path.write_text(text, encoding='utf-8')", "open(name, 'rb')", "page.open('/sheets')",
    "publisher.open()", "NamedTemporaryFile()", "subprocess.run(command, encoding='utf-8')", "open(STAMP, **NAMES)",
]  # fmt: skip
# Each line is in a module of its own. `planted` in a line is its name.
MODULES = {line: f"planted_{number:02}" for number, line in enumerate([*(line for _, line in LINES), *NO_FAULTS])}


@pytest.fixture(scope="module")
def source() -> Source:
    return Source()


@pytest.fixture(scope="module")
def complaints(source: Source) -> Callable[[Rule], list[str]]:
    """Plant all lines at once, and ask each rule once."""
    planted = source
    for line, name in MODULES.items():
        planted = planted.over(f"operate/{name}.py", f"{MODULE}{line.replace('planted', name)}\n")
    return functools.cache(lambda rule: list(rule(planted)))


@pytest.mark.parametrize(("rule", "line"), LINES)
def test_a_planted_line_is_found(rule: Rule, line: str, complaints: Callable[[Rule], list[str]]) -> None:
    """In a module of the product."""
    assert [complaint for complaint in complaints(rule) if MODULES[line] in complaint], complaints(rule)


@pytest.mark.parametrize("line", NO_FAULTS)
def test_bytes_and_named_encodings_are_no_fault(line: str, complaints: Callable[[Rule], list[str]]) -> None:
    assert not [found for found in complaints(code.encodings_of_the_locale) if MODULES[line] in found]


@pytest.fixture(scope="module")
def unplanted(source: Source) -> Callable[[Rule], set[str]]:
    """Ask each rule once about the checkout as it is."""
    return functools.cache(lambda rule: set(rule(source)))


@pytest.mark.long  # 10 s
@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        (code.sleeping_tests, "tests/core/test_planted.py", f"{MODULE}time.sleep(1)"),
        (code.files_that_say_nothing, PLANTED, "X = 1"),
        (code.files_that_say_nothing, "sql/planted.sql", "SELECT 1"),
        (code.pins, "requirements.lock", "ruff==1\n"),
        (code.pipelines_on_the_page, "src/onefold/dashboard/planted.py", '"""Rows of runner."""'),
        (code.pipelines_on_the_page, "src/onefold/dashboard/templates/base.html", "<a href='/sheets'>Sheets</a>"),
        (code.named_pipelines, "src/onefold/bench/planted.py", f"{MODULE}NAME = 'trades'"),
        (code.named_pipelines, "src/onefold/cli/commands/bench/planted.py", f"{MODULE}NAME = 'runner'"),
        (documents.verbs, README, "`onefold nothing`"),
        (documents.options, README, "`onefold up --nothing`"),
        (documents.passwords_in_arguments, README, "`onefold sql postgresql://me:secret@host/db`"),
        (documents.settings, SETTINGS, "`ONEFOLD_NOTHING`"),
        (documents.variables_of_compose, "docker-compose.yml", "${NOTHING:-1}"),
        (documents.names_in_merges, "sql/merge/planted.sql", "-- x\nINSERT INTO t SELECT * FROM :stage"),
        (documents.links_and_files, README, "[x](nowhere.md)"),
        (documents.links_and_files, README, "`processor/nowhere.py`"),
        (documents.readme, README, "\n" * 200),
        (documents.public_names, "docs/api.md", ""),
        (documents.command_page, "docs/commands.md", ""),
        (documents.lists_of_images, "images/python/spark.txt", "pyspark\n"),
        (documents.promised_tests, "docs/promises.md", ""),
        (documents.error_pages, "docs/errors.md", ""),
        (documents.error_pages, "src/onefold/operate/dead_letters/letters.py", MODULE),
        (documents.promised_tests, README, "`test_of_nothing`"),
        (pages.sentences, README, f"The sink {'writes rows and ' * 11}stops."),
        (pages.sentences, README, "Whoever reads the topic gets records."),
        (pages.paragraphs, README, "The sink writes rows. " * 23),
        (pages.paragraphs, README, f"| setting | {'x' * 161} |"),
        (pages.private_words, README, "The sink has landed the batch."),
        (pages.pro_forms, README, "It is what they said, and so this one is that. " * 20),
    ],
)
def test_a_planted_file_is_found(
    rule: Rule, name: str, text: str, source: Source, unplanted: Callable[[Rule], set[str]]
) -> None:
    """In the place of another one, or beside the others."""
    assert set(rule(source.over(name, text))) - unplanted(rule)


# Where a line is planted, the line, and words of the contract that it breaks.
IMPORTED = [
    ("processor/core", "import time", "no clock, no chance"),
    ("processor/runtime", "import threading", "handed in"),
    ("processor/apps", "import onefold.processor.core.fold", "public names alone"),
    ("operate", "import onefold.stack", "never what is above"),
    ("dashboard", "import onefold.jobs.apps.sheets.cells", "the engine imports no pipeline"),
    ("bench", "import onefold.processor.apps.runner", "the engine imports no pipeline"),
    ("cli", "import onefold.trades.evaluation", "the engine imports no pipeline"),
    ("dashboard", "import onefold.chaos", "never what is above"),
    ("processor/io", "import onefold.processor.service", "parts of the processor"),
    ("spark_sink/landing", "import onefold.spark_sink.spark", "parts of the sink"),
    ("verify", "import onefold.spark_sink.errors", "shares no code"),
    ("processor/core", "import onefold.names", "the core knows nobody"),
    ("operate", "import pyspark", "one door to Spark"),
    ("cli", "import confluent_kafka", "one door to Kafka"),
    ("processor/io", "import psycopg", "know no PostgreSQL"),
    ("operate", "import rocksdict", "smaller library"),
]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Plant all imports at once in a copy of the product. What import-linter says about each broken contract."""
    copied = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "src", *LINKED):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copied / name, symlinks=True)
        else:
            shutil.copy(ROOT / name, copied / name)
    for number, (folder, line, _) in enumerate(IMPORTED):
        (copied / "src" / "onefold" / folder / f"planted_{number:02}.py").write_text(
            f"{MODULE}{line}\n", encoding="utf-8"
        )
    ran = subprocess.run(
        [sys.executable, *IMPORTS], cwd=copied, capture_output=True, encoding="utf-8", timeout=120,
        env={**os.environ, "PYTHONPATH": str(copied / "src")},
    )  # fmt: skip
    assert ran.returncode == 1, ran.stdout + ran.stderr
    _, *headings = re.split(r"^(.+)\n-+\n\n", ran.stdout.partition("Broken contracts")[2], flags=re.MULTILINE)
    return dict(zip(headings[::2], headings[1::2], strict=True))


@pytest.mark.parametrize(("number", "contract"), [(at, contract) for at, (_, _, contract) in enumerate(IMPORTED)])
def test_a_planted_import_breaks_its_contract(number: int, contract: str, broken: dict[str, str]) -> None:
    assert any(contract in name and f"planted_{number:02}" in chains for name, chains in broken.items()), broken
