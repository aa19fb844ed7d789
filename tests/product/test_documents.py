"""What the documents tell a reader to type does what they say."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onefold.proof import decode, expect
from onefold.testing import TopologyDriver
from tests.support.command_line import ROOT, Onefold


def test_the_readmes_session(tmp_path_factory: object, onefold: Onefold, tmp_path: Path) -> None:
    """Every command of the README from `up` on, in one shell, in order; each must succeed."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    session = "\n".join(block for block in blocks if "./onefold demo" not in block and "docker compose" not in block)
    assert session.count("./onefold") >= 7
    program = tmp_path / "onefold"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}/src exec {sys.executable} -m onefold.cli.main "$@"\n')
    program.chmod(0o755)
    environment = onefold.environment | {"ONEFOLD_HOME": str(tmp_path / "home")}
    try:
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", session], cwd=tmp_path, env=environment, capture_output=True, timeout=400
        )
    finally:
        subprocess.run([program, "down", "--wipe"], env=environment, check=True, timeout=120)

    said = ran.stdout.decode()
    assert ran.returncode == 0, said + ran.stderr.decode()
    assert re.search(r"1 \|\s+100 \|\s+1000 \|\s+1100", said), said
    assert "valid" in said


def test_the_tutorials_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its contract, its handler, its model and its session with the test kit, as they are printed."""
    page = (ROOT / "docs" / "tutorial.md").read_text()
    (scan,) = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    handler, model, session = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "avro").mkdir()
    (tmp_path / "avro/parcels.Scan.avsc").write_text(scan)
    (tmp_path / "avro/parcels.Place.avsc").write_text(
        scan.replace("Scan", "Place").replace("parcels.scans", "parcels.places")
    )
    names: dict[str, object] = {}
    exec(handler, names)
    monkeypatch.chdir(tmp_path)
    exec(session, names)
    assert isinstance(names["driver"], TopologyDriver)
    assert names["driver"].restarts == 1
    _judge(model, scan, names["driver"], monkeypatch)


def _judge(model: str, scan: str, processed: TopologyDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tutorial's model makes the row that its handler has written; and it is small."""
    contract = decode.contract_of(json.loads(scan))
    monkeypatch.setattr(
        expect, "contracts", lambda domain=None: {"parcels.scans": contract, "parcels.places": contract}
    )
    names: dict[str, Any] = {}
    exec(model, names)
    inputs = [
        expect.Record("parcels.scans", 0, offset, key, value)
        for offset, (key, value, _) in enumerate(processed.records("parcels.scans"))
    ]
    expected = expect.expect(names["WORKLOAD"], inputs, 1)

    assert (expected.counts.accepted, expected.counts.ignored) == (1, 1)
    (((row, source)),) = expected.model.rows["parcels.places"].values()
    (place,) = processed.read("parcels.places")
    assert row == tuple(place.values())
    assert source == ("parcels.scans", 0, 0)
    assert len(model.splitlines()) <= 20
