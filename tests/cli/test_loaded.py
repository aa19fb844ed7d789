"""What a process loads when it starts: after a kill others wait for the new one, and it shares their cores."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # starts a process a test

# As `up` starts it: with addresses in the environment, which are looked at. Then what it loads when it begins.
LOADED = """
import importlib, sys
from onefold.cli import main
from onefold.config import settings

verb, *begin = sys.argv[1:]
main.load(main.COMMANDS, verb)
settings.load()
for name in begin:
    importlib.import_module(name)
print(*{name.partition(".")[0] for name in sys.modules})
"""
BEGIN = {
    "process": (
        ["onefold.processor.service", "onefold.operate.server_settings"],
        {"psycopg", "pyspark", "pyarrow", "starlette"},
    ),
    "sink": (["onefold.spark_sink.service"], {"rocksdict", "boto3", "starlette"}),
    "work": (["onefold.jobs.service"], {"pyspark", "pyarrow", "rocksdict", "boto3", "starlette"}),
    "audit": (["onefold.operate.auditing"], {"pyspark", "pyarrow", "rocksdict", "boto3", "starlette"}),
}


@pytest.mark.parametrize("verb", BEGIN)
def test_a_service_starts_without_what_it_does_not_use(verb: str, tmp_path: Path) -> None:
    begin, without = BEGIN[verb]
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "ONEFOLD_HOME": str(tmp_path),
        "ONEFOLD_BOOTSTRAP_SERVERS": "127.0.0.1:9",
        "ONEFOLD_POSTGRES_DSN": "postgresql://me:mine%2F@127.0.0.1:9/events",
    }
    started = [sys.executable, "-P", "-c", LOADED, verb, *begin]
    told = subprocess.run(
        started, capture_output=True, encoding="utf-8", check=True, env=environment, cwd=tmp_path
    ).stdout
    loaded = set(told.split())
    assert {"structlog", "onefold"} <= loaded
    assert loaded & (without | {"rich", "hypothesis", "pytest"}) == set()


def test_the_public_names_load_the_core_and_nothing_else() -> None:
    """Whatever imports anything of Onefold loads them first: no client, no codec, no third party at all."""
    program = "import sys; before = {*sys.modules}; import onefold; print(*{*sys.modules} - before)"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    printed = subprocess.check_output([sys.executable, "-P", "-c", program], env=environment).decode()
    loaded = {name for name in printed.split() if name.partition(".")[0] not in sys.stdlib_module_names}

    assert {name for name in loaded if not name.startswith("onefold.processor.core")} == {
        "onefold", "onefold.error_codes", "onefold.exit_codes", "onefold.processor",
    }  # fmt: skip
