"""The discovery of all pipelines and of their files from declarations.

A pipeline is declared as data, so that reading the declarations executes no code of a project. The declaration is a table:

    in the project file         [tool.onefold.pipelines.orders] in the pyproject.toml of the working folder or a parent folder.
    in an installed package     [pipelines.orders] in the onefold.toml of a package in the entry-point group
                                "onefold.pipelines", as for Onefold's own pipelines.

    [tool.onefold.pipelines.orders]
    topology = "shop.orders:TOPOLOGY"     A module, and the name of a Topology.
    workload = "shop.orders_workload"     A module with a generator and a verification model. Without the module, `produce` has
                                          no input and `verify` reports unknown.
    contracts = "avro"                    Folders next to the file, with these defaults.
    sql = "sql"
    kafka_only = ["orders.copies"]        Outputs without a table. The sink ignores these topics.
    jobs = {"orders.mails" = "shop.mails:MAILS"}
                                          Outputs of jobs, and their effects (docs/jobs.md). A module, and the name of an
                                          Effect, or of a function of a Context that returns an Effect.
    view = "shop.view:VIEW"               The pipeline's own dashboard pages: a module, and the name of a View.

With `packages = ["shop"]` in [tool.onefold], a project uses only the pipelines of these installed packages, and with `[]` no
package's. By default, a project uses the pipelines of all installed packages.

The processor, the sink, the verifier and all commands use this module. The verifier uses names and paths, and never loads a
topology.
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

#: The entry-point group of installed packages with pipelines.
GROUP = "onefold.pipelines"
#: The file with the declarations of a package.
PACKAGE_FILE = "onefold.toml"
#: The file with the declarations of a project.
PROJECT_FILE = "pyproject.toml"
#: The variable for the folder of the project file, for services in a different working folder.
PROJECT_VARIABLE = "ONEFOLD_PROJECT"

#: The engine's own schema in PostgreSQL, and the first word of the engine's topics. No pipeline can have this name.
ENGINE = "onefold"

#: The required fields of a job's schema, and their types.
JOB_FIELDS = {"log_id": "string", "segment": "long", "entry": "long"}

#: More replicas would repeat the computation without more safety.
REPLICAS_MAX = 5

#: The minimum age in seconds of a deleted decision. The time is far above the restore time of a replica, so that a starting or
#: briefly stopped replica can continue from its position.
DECISIONS_KEPT_S = 600
#: Kafka's number for unlimited retention.
FOREVER = -1

_NO_TEXTS = {"kafka_only", "jobs", "reports", "replicas", "decisions_kept_s"}
_KEYS = {"topology", "workload", "contracts", "sql", "view"} | _NO_TEXTS


def again_of(queue: str) -> str:
    """The topic of a queue's jobs to execute again."""
    return f"{queue}.again"


def dead_of(queue: str) -> str:
    """The dead-letter topic of a queue, for records that are no valid jobs."""
    return f"{queue}.dead"


class InvalidDeclaration(Exception):
    """A pipeline cannot be used. The message is a sentence with the file, and with the line if known."""


@dataclass(frozen=True)
class Pipeline:
    """The declaration of a pipeline.

    Attributes:
        name: The name, also the first word of the pipeline's topics and the schema in PostgreSQL.
        declared_in: The file with the declaration, for sentences.
        topology: "module:NAME" of the Topology.
        workload: The module of the generator and the verification model, or None.
        contracts: The folder of the *.avsc files.
        sql: The folder of schema/, merge/ and reduce/.
        kafka_only: The output topics without a table, including the topics of jobs.
        jobs: "module:NAME" of the effect, for each output topic of jobs.
        reports: The inputs written only by the pipeline's workers; None if not declared.
        view: "module:NAME" of the pages on the dashboard, or None.
        replicas: The number of processes that compute each task in parallel; 1 for a single process per task.
        decisions_kept_s: The minimum age in seconds of a deleted record of the decision log; None for unlimited retention.
        imported_from: The folder to add to Python's path for the pipeline's modules; None for an installed package.
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
        """The workers' topics besides the queues: jobs to execute again, and dead letters."""
        return tuple(named(queue) for queue in self.jobs for named in (again_of, dead_of))

    def load_topology(self) -> Any:
        """Load the Topology, which executes the module of the handler.

        Raises:
            InvalidDeclaration: The module or the name does not exist, or the module raises an error.
        """
        return self._named(self.topology, "topology")

    def load_job(self, topic: str) -> Any:
        """Load the effect of a topic of jobs, or the effect's factory. Raises `InvalidDeclaration` like `load_topology`."""
        return self._named(self.jobs[topic], f"jobs.{topic}")

    def load_view(self) -> Any:
        """Load the View; None without a view. Raises `InvalidDeclaration` like `load_topology`."""
        return self._named(self.view, "view") if self.view else None

    def load_workload(self) -> Any:
        """Load the module of the generator and the model; None without a module. Raises `InvalidDeclaration`."""
        return self._import(self.workload, "workload") if self.workload else None

    def _named(self, place: str, key: str) -> Any:
        module, _, name = place.partition(":")
        loaded = self._import(module, key)
        if not name or not hasattr(loaded, name):
            raise InvalidDeclaration(
                f"{self.declared_in}: pipeline {self.name}: {module} has no {name or 'name after a colon'}"
            )
        return getattr(loaded, name)

    def _import(self, module: str, key: str) -> Any:
        if self.imported_from is not None and str(self.imported_from) not in sys.path:
            # At the front, as for a script, so that a project's own modules take precedence.
            sys.path.insert(0, str(self.imported_from))
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
                raise InvalidDeclaration(
                    f"{_place(error, self)}: it imports {error.name}, which is not installed"
                ) from error
            raise InvalidDeclaration(
                f"{self.declared_in}: pipeline {self.name}: {key} names the module {module}, which cannot be found"
            ) from error
        except SyntaxError as error:
            raise InvalidDeclaration(f"{error.filename}:{error.lineno}: {error.msg}") from error
        except (Exception, SystemExit) as error:  # a script without a guard calls sys.exit()
            raise InvalidDeclaration(f"{_place(error, self)}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class FoundPipelines:
    """The usable pipelines by name, and a sentence for each unusable declaration."""

    pipelines: Mapping[str, Pipeline]
    faults: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> Pipeline:
        if name not in self.pipelines:
            raise InvalidDeclaration(
                f"there is no pipeline {name!r}; there are {', '.join(sorted(self.pipelines)) or 'none'}"
            )
        return self.pipelines[name]


def find(folder: Path | None = None) -> FoundPipelines:
    """Find all pipelines of installed packages and of the project around `folder` (the working folder if None).

    If two declarations have the same name, both are unusable, and all remaining pipelines stay usable.
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
    return FoundPipelines(usable, tuple(faults))


def project_file(folder: Path | None = None) -> Path | None:
    """The pyproject.toml with a table [tool.onefold] in the folder, or else in the nearest parent folder."""
    start = (folder or Path(os.environ.get(PROJECT_VARIABLE) or Path.cwd())).resolve()
    for candidate in (start, *start.parents):
        file = candidate / PROJECT_FILE
        if file.is_file() and "onefold" in _read(file, []).get("tool", {}):
            return file
    return None


@dataclass(frozen=True)
class _Source:
    """A file with declarations."""

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
            except InvalidDeclaration as fault:
                faults.append(str(fault))

    def _pipeline(self, name: str, table: Any) -> Pipeline:
        where = f"{self.file}:{_line(self.file, name)}: pipeline {name}"
        if fault := names.fault_of_pipeline(name):
            raise InvalidDeclaration(f"{where}: {fault}")
        if name == ENGINE:
            raise InvalidDeclaration(
                f"{where}: the schema and the topics of that name are the engine's own; rename the pipeline"
            )
        if not isinstance(table, dict):
            raise InvalidDeclaration(f"{where}: it is {table!r}, and no table")
        if unknown := table.keys() - _KEYS:
            raise InvalidDeclaration(f"{where}: {min(unknown)} is not known; there are {', '.join(sorted(_KEYS))}")
        kafka_only = table.get("kafka_only", [])
        if not isinstance(kafka_only, list) or not all(isinstance(topic, str) for topic in kafka_only):
            raise InvalidDeclaration(f'{where}: kafka_only is a list of topics, as in kafka_only = ["{name}.mails"]')
        jobs = table.get("jobs", {})
        if not isinstance(jobs, dict) or not all(isinstance(to, str) and ":" in to for to in jobs.values()):
            raise InvalidDeclaration(
                f'{where}: jobs says what does those of each topic, as in jobs = {{"{name}.mails" = "mails:MAILS"}}'
            )
        reports = table.get("reports")
        if reports is not None and not (isinstance(reports, list) and all(isinstance(one, str) for one in reports)):
            raise InvalidDeclaration(f'{where}: reports is a list of inputs, as in reports = ["{name}.sent"]')
        if reports is not None and not jobs:
            raise InvalidDeclaration(
                f"{where}: reports says which inputs its workers write, and it has no jobs: leave reports out"
            )
        replicas = table.get("replicas", 1)
        if type(replicas) is not int or not 1 <= replicas <= REPLICAS_MAX:
            raise InvalidDeclaration(f"{where}: replicas is {replicas!r}; it is a number from 1 to {REPLICAS_MAX}")
        kept_s = table.get("decisions_kept_s", DECISIONS_KEPT_S)
        if type(kept_s) is not int or (kept_s < 1 and kept_s != FOREVER):
            raise InvalidDeclaration(
                f"{where}: decisions_kept_s is {kept_s!r}; it is a number of seconds from 1, or -1 for ever"
            )
        texts = {key: value for key, value in table.items() if key not in _NO_TEXTS}
        if wrong := [key for key, value in texts.items() if not isinstance(value, str)]:
            raise InvalidDeclaration(f"{where}: {wrong[0]} is a text")
        if ":" not in table.get("topology", ""):
            raise InvalidDeclaration(f'{where}: topology is missing, as in topology = "{name}:TOPOLOGY"')
        if ":" not in table.get("view", ":"):
            raise InvalidDeclaration(f'{where}: view names a module and a name in it, as in view = "{name}_view:VIEW"')
        folders = {key: self._folder(table.get(key, default)) for key, default in _FOLDERS.items()}
        for key, folder in folders.items():
            if not folder.is_dir():
                raise InvalidDeclaration(f"{where}: {key} is {folder}, which is no folder")
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
        """The folder next to the declaration. In a checkout, Onefold's own folders are at the top."""
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
    """The first line of the table of `name`; 1 for an unusual notation."""
    lines: Iterable[tuple[int, str]] = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    return next(
        (number for number, line in lines if line.strip().endswith((f"pipelines.{name}]", f'pipelines."{name}"]'))), 1
    )


def _place(error: BaseException, pipeline: Pipeline) -> str:
    """The file and line of the pipeline's innermost frame in the traceback, or else the file of its declaration.

    Frames of Onefold count only without frames of the project, because `Topology` itself raises the error for a wrong topology.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if frame.filename not in (__file__, "<string>")]
    theirs = [frame for frame in own if not frame.filename.startswith(f"{Path(__file__).parent}{os.sep}")]
    places = [f"{frame.filename}:{frame.lineno}" for frame in theirs or own]
    return places[-1] if places else str(pipeline.declared_in)
