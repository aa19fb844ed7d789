"""The process that verifies loads nothing that decodes, folds or lands: a bug there would be in both."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rooms import ROOT

NOBODY = {"ONEFOLD_BOOTSTRAP_SERVERS": "127.0.0.1:9", "ONEFOLD_POSTGRES_DSN": "postgresql://127.0.0.1:9/none"}
LOADED = """
import json, sys
from onefold.cli.main import run
from onefold.operate import auditing
code = run(sys.argv[1:])
print(json.dumps([code, sorted(name for name in sys.modules if name.startswith("onefold."))]))
"""


@pytest.mark.slow  # starts a process
def test_a_process_that_verifies_loads_no_codec_of_the_processor(tmp_path: Path) -> None:
    """Once, or continuously. Errors and plain values of the processor's core are loaded with everything that tells errors."""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", LOADED, "verify", "runner"], capture_output=True, encoding="utf-8", cwd=tmp_path, timeout=60,
        env={**os.environ, **NOBODY, "PYTHONPATH": str(ROOT / "src"), "ONEFOLD_HOME": str(tmp_path)},
    )  # fmt: skip
    code, loaded = json.loads(ran.stdout.splitlines()[-1])
    assert code == 2, ran.stderr
    assert {"onefold.verify.verifier", "onefold.operate.verdicts", "onefold.verify.audit.auditor"} <= {*loaded}
    judged = ("onefold.processor.", "onefold.spark_sink.", "onefold.jobs.")
    core = ("onefold.processor.core", "onefold.spark_sink.errors")
    assert [name for name in loaded if name.startswith(judged) and not name.startswith(core)] == []
