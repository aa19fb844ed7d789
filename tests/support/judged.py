"""The verifier on a simulated log: reads the topics, and compares them with the expected records."""

from collections.abc import Mapping
from types import MappingProxyType

from onefold.testing import TopologyDriver
from onefold.verify.expect import Expected, Workload
from onefold.verify.outputs import judge_copies
from onefold.verify.record import ReadRecord
from onefold.verify.replays import Receipts
from onefold.verify.state import begin
from onefold.verify.verdict import Finding
from tests.support.simulated_stage import JudgesLog


def records(driver: TopologyDriver, topic: str) -> list[ReadRecord]:
    return [
        ReadRecord(topic, partition, offset, entry.key, entry.value, list(entry.headers), entry.timestamp_ms)
        for partition in range(driver.partitions)
        for offset, entry in driver.log.read(topic, partition, 0)[0]
    ]


def judged(
    workload: Workload,
    driver: TopologyDriver,
    moved: Mapping[tuple[str, int, int], int] = MappingProxyType({}),
    receipts: Receipts = MappingProxyType({}),
) -> tuple[list[Finding], Expected]:
    """Verify the topics; return the mismatches and the expected records.

    Jobs and feedback topics are read first, so that the verifier reads results before their causes.

    Args:
        moved: jobs to treat as in another partition.
        receipts: of replayed or dropped dead letters.
    """
    order_topic = [f"{workload.name}.order"] if driver.topology.order else []
    topics = [*workload.reads, *workload.outputs, *workload.queues, driver.topology.changelog, *order_topic]
    state = begin(workload, JudgesLog(driver.log, topics), None, receipts)
    oracle, order = state.oracle, state.order
    for topic in workload.queues:
        for record in records(driver, topic):
            oracle.take_job(record._replace(partition=moved.get(record[:3], record.partition)))
    for topic in reversed(workload.inputs):
        for record in records(driver, topic):
            if not oracle.owner.is_of_another(record):
                order.feed(record) if order else oracle.feed(record)
    if order:
        for record in records(driver, f"{workload.name}.order"):
            order.add(record)
        assert not order.left_over()
    expected = oracle.settled()
    for topic in (*driver.topology.dead.values(), *workload.outputs):
        for record in records(driver, topic):
            state.outputs.feed(record)
    findings = [*state.outputs.judge(expected), *judge_copies(expected), *expected.fed.findings(), *expected.mistimed]
    findings += [*state.matching.findings, *state.matching.left(), *state.replays.findings()]
    for topic, table in workload.outputs.items():
        wanted = {row for row, _ in expected.model.rows[table.name].values()}
        last = {tuple(row[name] for name in table.key): row for row in driver.read(topic)}
        found = {tuple(row.values()) for row in last.values()}
        findings += [Finding("different row", topic, text=str(row)) for row in wanted ^ found]
    return findings, expected
