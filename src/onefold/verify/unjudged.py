"""The parts of a pipeline without a comparison by the model: topics, tables, fields and columns. A verdict lists the names."""

from collections.abc import Iterator, Mapping

from onefold import pipelines
from onefold.verify.contracts import contracts
from onefold.verify.expect import Workload
from onefold.verify.snapshot import ORIGIN, DatabaseSnapshot, cut


def unjudged(work: Workload, snapshot: DatabaseSnapshot) -> dict[str, str]:
    """Return by name the model's reason for the missing comparison, or "". Candidates are the topics written by the sink,
    topics without a table, and the tables in the schema of the pipeline. Raises `CannotTell`.
    """
    pipeline = pipelines.find().pipelines.get(work.name)
    written = {topic for topic, _ in snapshot.ledger(work.name)} | {*(pipeline.kafka_only if pipeline else ())}
    fields = {topic: contracts(work.name)[topic].fields for topic in work.outputs}
    there = snapshot.tables(work.name, [table.name for table in work.tables])
    names = dict.fromkeys([*work.unmentioned(written, fields), *_of_tables(work, there)])
    return {name: work.not_judged.get(name, "") for name in names}


def _of_tables(work: Workload, there: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield tables without a comparison, and columns of the remaining tables as `table.column`."""
    known = {cut(table.name): table for table in work.tables}
    for name, columns in there.items():
        table = known.get(name)
        if table is None:
            yield name
        else:
            compared = {cut(column.name) for column in table.columns} | ORIGIN.keys()
            yield from (f"{table.name}.{column}" for column in columns if column not in compared)
