"""Which pipelines there are, and where their files are: found, never listed.

A pipeline is declared as data, so that reading the declarations runs nobody's code. The same table stands in one of two
places:

    the project file         [tool.onefold.pipelines.orders] in the pyproject.toml of the working folder, or of one above it
    an installed package     [pipelines.orders] in the onefold.toml of a package that the entry-point group
                             "onefold.pipelines" names; the pipelines that Onefold brings along are declared in this way

    [tool.onefold.pipelines.orders]
    topology = "shop.orders:TOPOLOGY"     a module, and the name of a Topology in it
    workload = "shop.orders_workload"     a module with a generator and a model; without it nothing is generated, and
                                          `verify` cannot tell
    contracts = "avro"                    folders beside the file; these are the defaults
    sql = "sql"
    kafka_only = ["orders.copies"]        outputs that no table wants: they are never landed, and nobody waits for them
    jobs = {"orders.mails" = "shop.mails:MAILS"}
                                          outputs whose records are jobs, and what does them (docs/jobs.md): a module, and the
                                          name of an Effect in it, or of a function that is given a Context and returns one
    view = "shop.view:VIEW"               pages of its own on the dashboard: a module, and the name of a View in it

A project that says `packages = ["shop"]` in its [tool.onefold] takes the pipelines of these installed packages, and `[]` of
none; without it those of all that are installed.

Processor, sink, judge and commands all ask here. The judge takes names and paths, and never loads a topology.
"""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from onefold import names, places

#: The entry-point group in which installed packages say that they bring pipelines.
GROUP = "onefold.pipelines"
#: What a package that brings pipelines declares them in.
PACKAGE_FILE = "onefold.toml"
#: What a project declares them in.
PROJECT_FILE = "pyproject.toml"
#: The folder to look for the project file in, instead of the working folder: services that run elsewhere get it.
PROJECT_VARIABLE = "ONEFOLD_PROJECT"

#: The engine's own schema in Postgres, and the first word of its own topics: no pipeline can have this name.
ENGINE = "onefold"

#: The fields that every topic of jobs has in its contract, and their types.
JOB_FIELDS = {"log_id": "string", "segment": "long", "entry": "long"}

#: More replicas compute the same more often, and are no safer.
REPLICAS_MAX = 5

#: How long a decision stays in its log at least, in seconds: two hundred times what a replica of a million keys needs to restore,
#: so that one that starts, or was away for a moment, reads on where it is. Of runner, at 1,000 events a second, ten minutes are a
#: quarter of a gigabyte.
DECISIONS_KEPT_S = 600
#: For ever, as Kafka says it.
FOREVER = -1

_NO_TEXTS = {"kafka_only", "jobs", "reports", "replicas", "decisions_kept_s"}
_KEYS = {"topology", "workload", "contracts", "sql", "view"} | _NO_TEXTS


def again_of(queue: str) -> str:
    """The topic of jobs that are put back into a queue."""
    return f"{queue}.again"


def dead_of(queue: str) -> str:
    """The topic of records of a queue that are no jobs."""
    return f"{queue}.dead"


class Faulty(Exception):
    """A pipeline cannot be used. The message is one sentence that names the file, and the line where there is one."""


@dataclass(frozen=True)
class Pipeline:
    """Where everything is that makes a pipeline.

    Attributes:
        name: also the first word of its topics, and its schema in Postgres.
        declared_in: the file with its table, for sentences.
        topology: "module:NAME" of its Topology.
        workload: the module of its generator and model, or None.
        contracts: the folder of its *.avsc.
        sql: the folder of its schema/, merge/ and reduce/.
        kafka_only: its output topics that are not landed in a table; those of jobs are among them.
        jobs: per output topic whose records are jobs "module:NAME" of what does them.
        reports: of its inputs those that its workers write, and nobody else; None: it does not say.
        view: "module:NAME" of its pages on the dashboard, or None.
        replicas: how many processes compute each of its tasks side by side; 1: each task is in one process.
        decisions_kept_s: how old a record of its decision log is at least when it is deleted; None: none is.
        imported_from: what has to be on Python's path for its modules; None for what is installed.
    """

    name: str
    declared_in: Path
    topology: str
    workload: str | None
    contracts: Path
    sql: Path
    kafka_only: tuple[str, ...] = ()
    jobs: Mapping[str, str] = field(default_factory=dict, hash=False)
    reports: tuple[str, ...] | None = None
    replicas: int = 1
    decisions_kept_s: int | None = DECISIONS_KEPT_S
    imported_from: Path | None = None
    view: str | None = None

    @property
    def topics_of_workers(self) -> tuple[str, ...]:
        """The topics that its workers write beside the queues."""
        return tuple(named(queue) for queue in self.jobs for named in (again_of, dead_of))

    def load_topology(self) -> Any:
        """Its Topology. This runs its handler's module.

        Raises:
            Faulty: there is no such module or name, or the module does not load.
        """
        return self._named(self.topology, "topology")

    def load_job(self, topic: str) -> Any:
        """What does the jobs of a topic, or the function that makes it. Raises `Faulty` like `load_topology`."""
        return self._named(self.jobs[topic], f"jobs.{topic}")

    def load_view(self) -> Any:
        """Its View; None when it has none. Raises `Faulty` like `load_topology`."""
        return self._named(self.view, "view") if self.view else None

    def load_workload(self) -> Any:
        """The module of its generator and model; None when it has none. Raises `Faulty` like `load_topology`."""
        return self._import(self.workload, "workload") if self.workload else None

    def _named(self, place: str, key: str) -> Any:
        module, _, name = place.partition(":")
        loaded = self._import(module, key)
        if not name or not hasattr(loaded, name):
            raise Faulty(f"{self.declared_in}: pipeline {self.name}: {module} has no {name or 'name after a colon'}")
        return getattr(loaded, name)

    def _import(self, module: str, key: str) -> Any:
        if self.imported_from is not None and str(self.imported_from) not in sys.path:
            # In front, as Python does it for a script: a project's own module is what it means by a name.
            sys.path.insert(0, str(self.imported_from))
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
                raise Faulty(f"{_place(error, self)}: it imports {error.name}, which is not installed") from error
            raise Faulty(
                f"{self.declared_in}: pipeline {self.name}: {key} names the module {module}, which cannot be found"
            ) from error
        except SyntaxError as error:
            raise Faulty(f"{error.filename}:{error.lineno}: {error.msg}") from error
        except (Exception, SystemExit) as error:  # a script without a guard calls sys.exit()
            raise Faulty(f"{_place(error, self)}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Found:
    """What there is: usable pipelines by name, and a sentence for each declaration that is none."""

    pipelines: Mapping[str, Pipeline]
    faults: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> Pipeline:
        if name not in self.pipelines:
            raise Faulty(f"there is no pipeline {name!r}; there are {', '.join(sorted(self.pipelines)) or 'none'}")
        return self.pipelines[name]


def find(folder: Path | None = None) -> Found:
    """All pipelines of installed packages and of the project around `folder` (the working folder if None).

    A name that is declared twice is a fault of both declarations; the other pipelines stay.
    """
    declared: dict[str, list[Pipeline]] = {}
    faults: list[str] = []
    for source in _sources(folder, faults):
        for pipeline in source.pipelines(faults):
            declared.setdefault(pipeline.name, []).append(pipeline)
    usable = {name: claims[0] for name, claims in sorted(declared.items()) if len(claims) == 1}
    for name, claims in sorted(declared.items()):
        if len(claims) > 1:
            places = " and ".join(str(claim.declared_in) for claim in claims)
            faults.append(f"the pipeline {name} is declared twice, in {places}: rename one of them")
    return Found(usable, tuple(faults))


def project_file(folder: Path | None = None) -> Path | None:
    """The pyproject.toml with a table [tool.onefold] in the folder, or the nearest one above it."""
    start = (folder or Path(os.environ.get(PROJECT_VARIABLE) or Path.cwd())).resolve()
    for candidate in (start, *start.parents):
        file = candidate / PROJECT_FILE
        if file.is_file() and "onefold" in _read(file, []).get("tool", {}):
            return file
    return None


@dataclass(frozen=True)
class _Source:
    """One file with declarations."""

    file: Path
    tables: Any
    imported_from: Path | None

    def pipelines(self, faults: list[str]) -> Iterator[Pipeline]:
        if not isinstance(self.tables, dict):
            faults.append(f"{self.file}: pipelines is no table")
            return
        for name, table in self.tables.items():
            try:
                yield self._pipeline(name, table)
            except Faulty as fault:
                faults.append(str(fault))

    def _pipeline(self, name: str, table: Any) -> Pipeline:
        where = f"{self.file}:{_line(self.file, name)}: pipeline {name}"
        if fault := names.fault_of_pipeline(name):
            raise Faulty(f"{where}: {fault}")
        if name == ENGINE:
            raise Faulty(f"{where}: the schema and the topics of that name are the engine's own; rename the pipeline")
        if not isinstance(table, dict):
            raise Faulty(f"{where}: it is {table!r}, and no table")
        if unknown := table.keys() - _KEYS:
            raise Faulty(f"{where}: {min(unknown)} is not known; there are {', '.join(sorted(_KEYS))}")
        kafka_only = table.get("kafka_only", [])
        if not isinstance(kafka_only, list) or not all(isinstance(topic, str) for topic in kafka_only):
            raise Faulty(f'{where}: kafka_only is a list of topics, as in kafka_only = ["{name}.mails"]')
        jobs = table.get("jobs", {})
        if not isinstance(jobs, dict) or not all(isinstance(to, str) and ":" in to for to in jobs.values()):
            raise Faulty(
                f'{where}: jobs says what does those of each topic, as in jobs = {{"{name}.mails" = "mails:MAILS"}}'
            )
        reports = table.get("reports")
        if reports is not None and not (isinstance(reports, list) and all(isinstance(one, str) for one in reports)):
            raise Faulty(f'{where}: reports is a list of inputs, as in reports = ["{name}.sent"]')
        if reports is not None and not jobs:
            raise Faulty(f"{where}: reports says which inputs its workers write, and it has no jobs: leave reports out")
        replicas = table.get("replicas", 1)
        if type(replicas) is not int or not 1 <= replicas <= REPLICAS_MAX:
            raise Faulty(f"{where}: replicas is {replicas!r}; it is a number from 1 to {REPLICAS_MAX}")
        kept_s = table.get("decisions_kept_s", DECISIONS_KEPT_S)
        if type(kept_s) is not int or (kept_s < 1 and kept_s != FOREVER):
            raise Faulty(f"{where}: decisions_kept_s is {kept_s!r}; it is a number of seconds from 1, or -1 for ever")
        texts = {key: value for key, value in table.items() if key not in _NO_TEXTS}
        if wrong := [key for key, value in texts.items() if not isinstance(value, str)]:
            raise Faulty(f"{where}: {wrong[0]} is a text")
        if ":" not in table.get("topology", ""):
            raise Faulty(f'{where}: topology is missing, as in topology = "{name}:TOPOLOGY"')
        if ":" not in table.get("view", ":"):
            raise Faulty(f'{where}: view names a module and a name in it, as in view = "{name}_view:VIEW"')
        folders = {key: self._folder(table.get(key, default)) for key, default in _FOLDERS.items()}
        for key, folder in folders.items():
            if not folder.is_dir():
                raise Faulty(f"{where}: {key} is {folder}, which is no folder")
        return Pipeline(
            name,
            self.file,
            table["topology"],
            table.get("workload"),
            **folders,
            kafka_only=tuple(dict.fromkeys([*kafka_only, *jobs])),
            jobs=jobs,
            reports=None if reports is None else tuple(reports),
            replicas=replicas,
            decisions_kept_s=None if kept_s == FOREVER else kept_s,
            imported_from=self.imported_from,
            view=table.get("view"),
        )

    def _folder(self, name: str) -> Path:
        """Beside the declaration. Onefold's own folders are at the top of a checkout."""
        own = self.file.parent == places.PACKAGE
        return places.data(name) if own else self.file.parent / name


_FOLDERS = {"contracts": "avro", "sql": "sql"}
_PACKAGES = "packages"


def _sources(folder: Path | None, faults: list[str]) -> Iterator[_Source]:
    project = project_file(folder)
    table: dict[str, Any] = _read(project, faults)["tool"]["onefold"] if project else {}
    wanted = table.get(_PACKAGES)
    if wanted is not None and not (isinstance(wanted, list) and all(isinstance(name, str) for name in wanted)):
        faults.append(f'{project}: {_PACKAGES} is a list of packages, as in {_PACKAGES} = ["onefold"]')
        wanted = None
    brought = {point.value for point in metadata.entry_points(group=GROUP)}
    for package in sorted(set(wanted or ()) - brought):
        faults.append(f"{project}: {_PACKAGES} names {package}, which is not installed or brings no pipelines")
    for package in sorted(brought if wanted is None else brought & set(wanted)):
        if source := _of_package(package, faults):
            yield source
    if project:
        yield _Source(project, table.get("pipelines", {}), project.parent)


def _of_package(package: str, faults: list[str]) -> _Source | None:
    try:
        file = Path(str(resources.files(package))) / PACKAGE_FILE
    except (ModuleNotFoundError, TypeError) as error:
        faults.append(f"the package {package} says that it brings pipelines, but cannot be found: {error}")
        return None
    if not file.is_file():
        faults.append(f"the package {package} says that it brings pipelines, but has no {PACKAGE_FILE}")
        return None
    return _Source(file, _read(file, faults).get("pipelines", {}), None)


def _read(file: Path, faults: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        faults.append(f"{file}: {error}")
        return {}


def _line(file: Path, name: str) -> int:
    """Where the table of `name` begins; 1 when it is written in an unusual way."""
    lines: Iterable[tuple[int, str]] = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    return next(
        (number for number, line in lines if line.strip().endswith((f"pipelines.{name}]", f'pipelines."{name}"]'))), 1
    )


def _place(error: BaseException, pipeline: Pipeline) -> str:
    """File and line of the innermost frame that is the pipeline's own, or else of where it is declared.

    What a topology of a project refuses is raised in here, from a line of the project.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if frame.filename not in (__file__, "<string>")]
    theirs = [frame for frame in own if not frame.filename.startswith(f"{Path(__file__).parent}{os.sep}")]
    places = [f"{frame.filename}:{frame.lineno}" for frame in theirs or own]
    return places[-1] if places else str(pipeline.declared_in)
