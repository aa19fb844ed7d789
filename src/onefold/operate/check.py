"""The faults of a pipeline, before the start of any service: in declaration, handler, contracts, SQL files and verification
model.

Every fault is one sentence that names the file. A pipeline without faults can be started. Only PostgreSQL can check the SQL: at
the creation of the tables, and at the start of the sink.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from onefold import names
from onefold.operate import merge_sql, panels
from onefold.pipelines import JOB_FIELDS, FoundPipelines, InvalidDeclaration, Pipeline
from onefold.processor import loading
from onefold.processor.core.errors import Misconfigured, Refused
from onefold.processor.core.topology import Topology
from onefold.processor.io import contracts
from onefold.processor.io.contracts import RecordSchema
from onefold.processor.io.serde import AvroCodec
from onefold.spark_sink.contracts import REJECTED, load_domain
from onefold.spark_sink.postgres import schema_files

_PLACES = ("merge", "reduce")


def check_all(found: FoundPipelines, *, not_judged: bool = True) -> dict[str, list[str]]:
    """The faults of every pipeline by name. Unreadable declarations are under "".

    Args:
        not_judged: include the outputs and tables that a model omits without a reason. A pipeline with such a gap can be
            started, and its rows are right.
    """
    findings = {name: check(pipeline, not_judged=not_judged) for name, pipeline in found.pipelines.items()}
    for name, sentence in _collisions(found):
        findings[name].append(sentence)
    return {"": list(found.faults), **findings}


def _collisions(found: FoundPipelines) -> Iterator[tuple[str, str]]:
    """Find conflicts between the topics of pipelines, each with the name of a pipeline. Three are found: names that Kafka
    treats as equal; an output in a topic that is private to another pipeline; an input of a parking pipeline that another
    pipeline uses too.

    Of two topics with equal names for Kafka, the fault belongs to the later pipeline in the order of names.
    """
    loaded: dict[str, Topology] = {}
    for name, pipeline in found.pipelines.items():
        with suppress(InvalidDeclaration, Refused):
            loaded[name] = loading.load_topology(pipeline)
    own = {name: loading.own_topics(found.pipelines[name], topology) for name, topology in loaded.items()}
    kept = {topic: name for name, topics in own.items() for topic in topics}
    taken: dict[str, tuple[str, str]] = {}
    for name, topology in loaded.items():
        where = found.pipelines[name].declared_in
        for topic in dict.fromkeys((*topology.reads, *topology.outputs, *own[name])):
            other, owner = taken.setdefault(names.metric_name(topic), (topic, name))
            if other != topic:
                beside = f"{where}: Kafka refuses the topic {topic} beside {other} of {owner}"
                yield name, f"{beside}: to its metrics '.' and '_' are one. Rename one of them"
            if topic in topology.outputs and kept.get(topic, name) != name:
                yield name, f"{where}: {kept[topic]} keeps the topic {topic} for itself: give the output another name"
        others = [
            (other, topic) for other, its in loaded.items() if other != name for topic in (*its.reads, *its.outputs)
        ]
        for other, topic in others if topology.on_dead_letter == "park" else ():
            if topic in topology.inputs:
                why = f"{topic} is a topic of {other} too, so that its dead letters cannot be replayed"
                yield name, f"{where}: {why}, and a parked key would wait for ever: say on_dead_letter='pass'"


def check(pipeline: Pipeline, *, not_judged: bool = True) -> list[str]:
    """The faults of a pipeline, empty if it can be started. Takes a fraction of a second, and asks no server. `not_judged`: see
    `check_all`.
    """
    try:
        topology = loading.load_topology(pipeline)
        known = contracts.load(pipeline.contracts, (*topology.inputs, *topology.outputs))
    except (InvalidDeclaration, Refused) as error:
        return [str(error)]
    return [
        *_of_topology(pipeline, topology, known),
        *_of_sql(pipeline, topology),
        *_of_page(pipeline),
        *_of_workload(pipeline, topology, known, not_judged=not_judged),
    ]


def _of_topology(pipeline: Pipeline, topology: Topology, known: Mapping[str, RecordSchema]) -> Iterator[str]:
    where = f"{pipeline.topology}"
    if not topology.inputs:
        yield f"{where} has no inputs"
    missing = [topic for topic in (*topology.inputs, *topology.outputs) if topic not in known]
    for topic in missing:
        yield f'no schema in {pipeline.contracts} names the topic {topic} in its "topics"'
    for topic, row in topology.outputs.items():
        if row and topic in known:
            fields = {field["name"] for field in known[topic].schema["fields"]}
            for name in sorted(set(row) - fields):
                yield f"{where}: a row of {topic} is identified by {name}, which its schema {known[topic].name} lacks"
    for topic in sorted(set(pipeline.kafka_only) - set(topology.outputs) - set(pipeline.jobs)):
        yield f"{pipeline.declared_in}: kafka_only names {topic}, which is no output of {pipeline.name}"
    yield from _of_jobs(pipeline, topology, known)
    if not missing:
        try:
            AvroCodec(topology, known)
        except (Refused, TypeError, ValueError) as error:
            yield f"{where}: its state {topology.state.__name__} cannot be kept: {error}"


def _of_jobs(pipeline: Pipeline, topology: Topology, known: Mapping[str, RecordSchema]) -> Iterator[str]:
    for topic in pipeline.jobs:
        if topic not in topology.outputs:
            yield f"{pipeline.declared_in}: jobs names {topic}, which is no output of {pipeline.name}"
        elif topic in known:
            fields = {field["name"]: field["type"] for field in known[topic].schema["fields"]}
            for name, kind in JOB_FIELDS.items():
                if fields.get(name) != kind:
                    yield (
                        f"{pipeline.declared_in}: jobs names {topic}, whose schema {known[topic].name} lacks the field "
                        f"{name} of type {kind}: log_id says what a job is about, segment and entry when its turn is"
                    )
        try:
            pipeline.load_job(topic)
        except InvalidDeclaration as fault:
            yield str(fault)
    for topic in sorted(set(pipeline.reports or ()) - (set(topology.inputs) - set(topology.fed))):
        yield f"{pipeline.declared_in}: reports names {topic}, which is no input of {pipeline.name} that its workers write"


def _of_sql(pipeline: Pipeline, topology: Topology) -> Iterator[str]:
    landed = sorted(set(topology.outputs) - set(pipeline.kafka_only))
    files = {place: list(_files(pipeline, place)) for place in _PLACES}
    for topic in landed:
        if not any(_topic_of(file, topology.outputs) == topic for file in (*files["merge"], *files["reduce"])):
            yield (
                f"{pipeline.sql / 'merge' / topic}.sql is missing: it says how records of {topic} become rows. "
                f"If no table wants them, list the topic under kafka_only in {pipeline.declared_in}"
            )
    for file in (*files["merge"], *files["reduce"]):
        written = _topic_of(file, topology.outputs)
        if written is None:
            yield f"{file} is for a topic that {pipeline.name} does not write"
        elif written in pipeline.kafka_only:
            yield f"{file} writes {written}, which {pipeline.declared_in} lists under kafka_only: keep one of the two"
    try:
        schema_files.files(pipeline.name, pipeline.sql)
    except Misconfigured as error:
        yield str(error)
    for place in ("schema", "merge"):
        for file in _files(pipeline, place):
            for line, name in names.too_long_in(file.read_text(encoding="utf-8", errors="replace")):
                yield f"{file}:{line}: {name} {names.too_long(name)}: choose a shorter one"
    if any(files.values()):
        try:
            load_domain(pipeline.name, pipeline.contracts, pipeline.sql)
        except Misconfigured as error:
            yield str(error)


def _of_page(pipeline: Pipeline) -> Iterator[str]:
    try:
        panels.load(pipeline)
    except InvalidDeclaration as fault:
        yield str(fault)
    if pipeline.view is not None:
        module = pipeline.view.partition(":")[0]
        found = None
        with suppress(ImportError, ValueError):
            found = importlib.util.find_spec(module)  # the import of the module itself needs packages of the dashboard
        if found is None:
            yield f"{pipeline.declared_in}: view names the module {module}, which cannot be found"


def _files(pipeline: Pipeline, place: str) -> Iterator[Path]:
    """The SQL files of a pipeline. Files of the sink itself may be in the same folder."""
    mine = (pipeline.sql / place).glob(f"{pipeline.name}.*.sql")
    return (file for file in sorted(mine) if file.stem != REJECTED)


def _topic_of(file: Path, outputs: Iterable[str]) -> str | None:
    """The topic of a file. `orders.totals.sql` and `orders.totals.by_day.sql` both belong to orders.totals."""
    return next((topic for topic in outputs if file.stem == topic or file.stem.startswith(f"{topic}.")), None)


def _of_workload(
    pipeline: Pipeline, topology: Topology, known: Mapping[str, RecordSchema], *, not_judged: bool
) -> Iterator[str]:
    try:
        module: Any = pipeline.load_workload()
    except InvalidDeclaration as fault:
        yield str(fault)
        return
    workload = getattr(module, "WORKLOAD", None)
    if workload is None:
        return
    where = f"{module.__name__}.WORKLOAD"
    if workload.name != pipeline.name:
        yield f"{where} is called {workload.name}; give it the pipeline's name, {pipeline.name}"
    for topic in sorted({*workload.inputs} ^ {*topology.inputs}):
        side = "the topology has not" if topic in workload.inputs else "the topology has too"
        yield f"{where} has other inputs than the topology: {topic}, which {side}"
    if workload.ticks != (topology.tick is not None):
        says, lacks = ("has ticks", "no tick") if workload.ticks else ("has no ticks", "a tick")
        yield f"{where} {says}, and the topology declares {lacks}: give the model the tick function that belongs to it"
    if workload.tombstones != topology.tombstones:
        yield (
            f"{where} says tombstones={workload.tombstones!r}, and the topology says {topology.tombstones!r}: say what becomes "
            f"of a null value in both, and alike"
        )
    if workload.on_dead_letter != topology.on_dead_letter:
        yield (
            f"{where} says on_dead_letter={workload.on_dead_letter!r}, and the topology says {topology.on_dead_letter!r}: say in "
            f"both, and alike, whether later events of a key wait for a dead letter"
        )
    for topic in sorted({*workload.fed} ^ {*topology.fed}):
        yield f"{where} and the topology do not agree whether {topic} is fed by {pipeline.name} itself: say it in fed=(...)"
    for table in workload.tables:
        columns = (*table.key, *(column.name for column in (*table.only, *table.but)))
        for name in dict.fromkeys((*table.name.split("."), *columns)):
            if cut := names.too_long(name):
                yield f"{where}: {name} of the table {table.name} {cut}: choose a shorter one"
    if not_judged:
        yield from _of_not_judged(pipeline, topology, known, workload, where)
    for topic in sorted({*workload.outputs} - {*topology.outputs}):
        yield f"{where} expects rows of {topic}, which {pipeline.name} does not write"
    for topic in sorted({*workload.queues} - ({*topology.outputs} - {*topology.fed})):
        yield f"{where} has the queue {topic}, which is no output of {pipeline.name} that others read"


def _of_not_judged(
    pipeline: Pipeline, topology: Topology, known: Mapping[str, RecordSchema], workload: Any, where: str
) -> Iterator[str]:
    """Find the gaps in a verification model: outputs, fields and tables that the model neither compares nor lists. The columns
    of tables are known only to the database.
    """
    fields = {topic: [field["name"] for field in contract.schema["fields"]] for topic, contract in known.items()}
    # PostgreSQL reads a name without quotes in lower case, and finds a name without a schema on the search path.
    tables = sorted(name.replace('"', "") if '"' in name else name.lower() for name in merge_sql.written(pipeline))
    known_names = {*workload.mentioned, *workload.not_judged}
    known_names |= {name.rpartition(".")[2] for name in known_names}
    for name in dict.fromkeys([*workload.unmentioned(topology.outputs, fields), *tables]):
        if name not in known_names:
            yield f'{where} never mentions {name}: give it a table there, or say why in not_judged={{"{name}": "..."}}'
    for name in sorted(workload.mentioned & workload.not_judged.keys()):
        yield f"{where} compares {name}, and lists it in not_judged: keep one of the two"
