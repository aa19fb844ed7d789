"""Snapshots under a real bound on memory: of a million cells, and of more than the worker's memory holds."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.jobs.apps.sheets.cells import Rect, Value
from onefold.jobs.apps.sheets.entries import Entries
from onefold.jobs.apps.sheets.formulas import Formulas
from onefold.jobs.apps.sheets.reading import SheetAtEntry
from onefold.jobs.apps.sheets.snapshot import FinishedSnapshot
from onefold.jobs.objects.local import LocalStore
from onefold.spark_sink.postgres.connection import connect
from tests.support.rooms import ROOT
from tests.support.sheets import SheetLog, finish_in_tables, prepared

pytestmark = [
    pytest.mark.slow,  # tens of seconds: so much content
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system keeps no bound on address space"),
]
# A million cells, as the bar has it; a worker that has imported everything and is connected takes about 52 MB of address space.
LIMIT_MB = 512
SMALL_MB = 96
LARGE_MB = 120


@pytest.fixture
def folder() -> Iterator[Path]:
    """On the disk: what lies in memory would be counted as the content of a machine, and not of a process, but it is much."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest.fixture
def log(database: str) -> SheetLog:
    return SheetLog(prepared(database), "large")


def take_in(log: SheetLog, store: LocalStore, lines: Iterable[bytes]) -> int:
    """One import and a snapshot entry; gives the size of the payload."""
    name = log.take_in({})
    size = store.put_stream(name, iter(lines))
    log.ask()
    log.land()
    return size


def child(log: SheetLog, folder: Path, limit_mb: int, work: str = "snapshot") -> Any:
    """What the process said; None: it ran out of memory."""
    words = [log.dsn, str(folder), log.sheet, str(log.entry), str(limit_mb), work]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.sheet_worker", *words],
        capture_output=True,
        encoding="utf-8",
        cwd=ROOT,
        # An arena of malloc for each thread would be address space that nobody uses.
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "MALLOC_ARENA_MAX": "1"},
    )
    if ran.returncode and "MemoryError" in ran.stderr:
        return None
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    print(work, limit_mb, told)  # noqa: T201  figures, for who asks with -s
    return told


@pytest.mark.long  # 19 s
def test_a_million_cells(log: SheetLog, folder: Path) -> None:
    store = LocalStore(folder)
    take_in(log, store, (b'[%d,%d,"n","%d.25"]\n' % (at // 20 + 1, at % 20 + 1, at) for at in range(1_000_000)))
    result = child(log, folder, LIMIT_MB)["results"][0]
    assert result["cells"] == 1_000_000

    finish_in_tables(log.dsn, FinishedSnapshot(log.sheet, *log.job(log.entry).place, **result))
    entries = Entries(lambda: connect(log.dsn, "test"))
    reading = SheetAtEntry(entries, store, log.sheet)
    whole = Formulas(reading).shown((1, 30), Value("f", "=SUM(A1:T50000)"))
    entries.close()
    assert whole == 499_999_500_000 + 250_000
    assert len(list(reading.cells(Rect(50_000, 1, 60_000, 20)))) == 20


@pytest.mark.long  # 12 s
def test_more_than_memory_holds(log: SheetLog, folder: Path) -> None:
    """The content is larger than the bound; and who reads it whole under the same bound does not come through."""
    text = b"0123456789" * 3_000
    lines = LARGE_MB * 1024 * 1024 // len(text)
    size = take_in(log, LocalStore(folder), (b'[%d,1,"t","%d-%s"]\n' % (at, at, text) for at in range(1, lines + 1)))
    assert size > SMALL_MB * 1024 * 1024

    assert child(log, folder, SMALL_MB, "nothing")["VmPeak"] < SMALL_MB
    assert child(log, folder, SMALL_MB, "whole") is None
    result = child(log, folder, SMALL_MB)["results"][0]
    assert (result["cells"], result["size"]) == (lines, size)
