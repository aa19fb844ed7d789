"""What a verb needs beyond what the wheel without extras brings, and the sentence for what is not there.

An extra is a group of packages in pyproject.toml; tests/cli/test_extras.py holds this table to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from onefold import packages
from onefold.cli import plugins
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE

#: Of each extra the names that our code imports, or that the imported cannot do without.
IMPORTED = {
    "processor": ("confluent_kafka", "prometheus_client", "rocksdict"),
    "registry": ("attr", "authlib", "cachetools", "certifi", "httpx2"),
    "sink": ("pyspark", "py4j", "pyarrow", "psycopg", "confluent_kafka", "cryptography", "prometheus_client"),
    "judge": ("confluent_kafka", "psycopg"),
    "dashboard": ("starlette", "uvicorn", "sse_starlette", "jinja2", "psycopg", "prometheus_client"),
    "stack": ("confluent_kafka", "psycopg", "cryptography", "yaml"),
    "jobs": ("confluent_kafka", "psycopg", "prometheus_client"),
    "s3": ("boto3", "botocore"),
    "formulas": ("lark",),
    "bench": ("pygal",),
}
#: What each verb works with; of several extras that bring the same the first is named. A verb without a row needs none, and a
#: command of an installed package has a list of its own.
NEEDS = {
    "demo": ("processor", "sink", "judge", "stack"),
    "up": ("stack", "processor", "sink"),
    "status": ("processor", "judge"),
    "dashboard": ("dashboard", "processor"),
    "produce": ("processor",),
    "consume": ("processor",),
    "sql": ("stack",),
    "kafka": ("stack",),
    "pause": ("processor",),
    "resume": ("processor",),
    "migrate": ("processor", "sink"),
    "kubernetes": ("processor", "stack"),
    "process": ("processor",),
    "sink": ("sink",),
    "work": ("jobs",),
    "jobs": ("jobs",),
    "bench": ("processor", "sink", "judge", "stack"),
    "chaos": ("processor", "judge"),
    "verify": ("judge",),
    "dead-letters": ("processor",),
    "reset": ("processor", "judge"),
    "rebuild": ("processor", "sink", "stack"),
}
#: Where the name to install is not the name to import.
_INSTALLED_AS = {
    "attr": "attrs",
    "confluent_kafka": "confluent-kafka",
    "prometheus_client": "prometheus-client",
    "sse_starlette": "sse-starlette",
    "yaml": "pyyaml",
}


def explain(verb: str, error: ModuleNotFoundError) -> UserError | None:
    """The sentence (exit code 2) for a module that an extra would have brought; None when none would."""
    name = (error.name or "").partition(".")[0]
    needs = NEEDS.get(verb) or plugins.needs(verb)
    brought = [extra for extra in (*needs, *IMPORTED) if name in IMPORTED[extra]]
    if not brought:
        return None
    # All that the verb will ask for, at once: nobody wants to install one thing after the other.
    return _sentence(verb, name, ",".join(_lacking(needs)) or brought[0])


def require(verb: str, *extras: str) -> None:
    """Look for all that these extras bring before anything is begun: a service would fail where nobody is looking.

    Raises UserError (exit code 2) that names the extras with something missing, and what.
    """
    if lacking := _lacking(extras):
        raise _sentence(verb, next(iter(lacking.values())), ",".join(lacking))


def _lacking(extras: Iterable[str]) -> dict[str, str]:
    """Of the extras that are not here as a whole, the first thing that is missing."""
    return {extra: name for extra in extras for name in reversed(IMPORTED[extra]) if not find_spec(name)}


def _sentence(verb: str, name: str, extras: str) -> UserError:
    package = _INSTALLED_AS.get(name, name)
    who = f"onefold {verb}".rstrip()
    return UserError(
        Code.PACKAGE_MISSING,
        f"{who} needs {package}: {packages.install(extras, verb)}",
        "",
        USAGE,
    )
