"""The judge on a simulated log: it reads the topics as they are, and compares with what the log must give."""

from onefold.proof.expect import Expected, Oracle, Workload
from onefold.proof.order import Order
from onefold.proof.outputs import Outputs, judge_copies
from onefold.proof.owner import Owner
from onefold.proof.record import Record
from onefold.proof.verdict import Finding
from onefold.testing import TopologyDriver


def records(driver: TopologyDriver, topic: str) -> list[Record]:
    return [
        Record(topic, partition, offset, entry.key, entry.value, list(entry.headers), entry.timestamp_ms)
        for partition in range(driver.partitions)
        for offset, entry in driver.log.read(topic, partition, 0)[0]
    ]


def judged(workload: Workload, driver: TopologyDriver) -> tuple[list[Finding], Expected]:
    """What the judge finds in the topics, and what it expects. What is fed and queued is read first: it is then known before
    what caused it.
    """
    life = driver.log.identity(driver.topology.changelog, 0).topic_id
    owner = Owner(driver.log.cluster_id, workload.name, life)
    oracle = Oracle(workload, driver.partitions, owner=owner)
    for topic in workload.queues:
        for record in records(driver, topic):
            oracle.take_job(record)
    order = Order(workload.inputs, oracle.feed) if driver.topology.order else None
    for topic in reversed(workload.inputs):
        for record in records(driver, topic):
            if not oracle.owner.is_of_another(record):
                order.feed(record) if order else oracle.feed(record)
    if order:
        for record in records(driver, f"{workload.name}.order"):
            order.add(record)
        assert not order.left_over()
    outputs, expected = Outputs(workload, owner), oracle.settled()
    for topic in (*driver.topology.dead.values(), *workload.outputs):
        for record in records(driver, topic):
            outputs.feed(record)
    findings = [*outputs.judge(expected), *judge_copies(expected), *expected.fed.findings(), *expected.mistimed]
    for topic, table in workload.outputs.items():
        wanted = {row for row, _ in expected.model.rows[table.name].values()}
        last = {tuple(row[name] for name in table.key): row for row in driver.read(topic)}
        found = {tuple(row.values()) for row in last.values()}
        findings += [Finding("different row", topic, text=str(row)) for row in wanted ^ found]
    return findings, expected
