"""The generated input is the same for the same seed, of the stated size, and has in it what it is for."""

from collections import Counter
from itertools import islice
from types import ModuleType

import pytest

from onefold.verify.expect import Expected
from onefold.verify.loading import UnknownDomain, workload
from onefold.verify.placement import partition_of
from onefold.verify.record import Record
from onefold.workloads import averages, bank, campaigns, runner, sheets, trades
from onefold.workloads.shaping import Input, Shape
from tests.support.expected import expect

pytestmark = pytest.mark.slow  # thousands of events of every pipeline

DOMAINS = [runner, campaigns, trades, averages, bank, sheets]
COUNT = 8_000
PARTITIONS = 4


def log_of(inputs: list[Input]) -> list[Record]:
    """As a producer would put them; a record without a key goes to partition 0."""
    ends = [0] * PARTITIONS
    records = []
    for given in inputs:
        partition = partition_of(given.key.decode(), PARTITIONS) if given.key else 0
        records.append(Record(given.topic, partition, ends[partition], given.key, given.value))
        ends[partition] += 1
    return records


@pytest.mark.parametrize("domain", DOMAINS)
def test_same_seed_same_input(domain: ModuleType) -> None:
    shape = Shape(hostile=0.01, keyless=0.01)
    first = list(domain.generate(5, COUNT, shape=shape))
    assert len(first) == COUNT
    assert first == list(domain.generate(5, COUNT, shape=shape))
    assert first != list(domain.generate(6, COUNT, shape=shape))


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 9000])
def test_any_count(domain: ModuleType, count: int) -> None:
    assert len(list(domain.generate(1, count))) == count


@pytest.mark.parametrize("domain", DOMAINS)
def test_well_behaved_input_has_no_dead_letter_and_hostile_input_has(domain: ModuleType) -> None:
    assert not expect(domain.WORKLOAD, log_of(list(domain.generate(1, COUNT))), PARTITIONS).dead
    shape = Shape(hostile=0.05, keyless=0.02)
    expected = expect(domain.WORKLOAD, log_of(list(domain.generate(1, COUNT, shape=shape))), PARTITIONS)
    assert len(expected.dead) > COUNT * 0.02
    assert expected.counts.repartitioned > COUNT * 0.01


def test_runner_has_repeats_late_ones_and_interleaved_runs() -> None:
    expected = expect(runner.WORKLOAD, log_of(list(runner.generate(1, COUNT, users=500))), PARTITIONS)
    assert expected.counts.ignored > COUNT * 0.03
    assert len(expected.model.rows["runner.stats"]) > 500 + 50


def test_campaigns_have_third_sends_corrections_and_withdrawals() -> None:
    expected = expect(campaigns.WORKLOAD, log_of(list(campaigns.generate(1, COUNT, campaigns=1000))), PARTITIONS)
    totals = [row for row, _ in expected.model.rows["campaigns.totals"].values()]
    sends = [row for row, _ in expected.model.rows["campaigns.sends"].values()]
    assert sum(row[7] is not None for row in totals) > 100
    assert sum(row[2] == 0 for row in sends) > 100
    assert sum(row[5] > 0 for row in sends) > 100


def test_the_bank_has_refusals_of_all_kinds_and_money_that_goes_astray() -> None:
    expected = expect(bank.WORKLOAD, log_of(list(bank.generate(1, 3 * COUNT))), PARTITIONS)
    reasons = Counter(row[-1] for row, _ in expected.model.rows["bank.refusals"].values())
    assert min(reasons[reason] for reason in ("unknown_account", "insufficient_funds", "closed_account")) > 0
    assert expected.counts.ignored > COUNT * 0.02
    astray = [finding for finding in expected.fed.findings() if finding.key["payee"] not in still_open(expected)]
    assert len(astray) > COUNT * 0.005


def test_sheets_have_snapshots_and_uploads_of_all_fates() -> None:
    expected = expect(sheets.WORKLOAD, log_of(list(sheets.generate(1, COUNT, alone=True))), PARTITIONS)
    rows = expected.model.rows
    assert len(rows["sheets.snapshots"]) > 50
    assert len(rows["sheets.refusals"]) > 20
    assert any(row[2] > 0 for row, _ in rows["sheets.entries"].values()), "a log with a second segment"
    jobs = [finding for finding in expected.fed.findings() if finding.where == sheets.OBJECTS]
    assert {job.key["keep"] for job in jobs} == {"True", "False"}
    assert max(int(job.key["entry"]) for job in jobs) > 2, "discarded again and again"
    assert expected.counts.ignored > 20


def test_where_workers_run_no_report_is_made_up() -> None:
    topics = Counter(made.topic for made in sheets.generate(1, COUNT))
    assert topics.keys() == {sheets.EDITS, sheets.UPLOADS}


def still_open(expected: Expected) -> set[str]:
    return {str(row[0]) for row, _ in expected.model.rows["bank.accounts"].values() if not row[-1]}


def test_the_seeds_three_messages_are_among_the_first() -> None:
    values = [given.value for given in islice(campaigns.generate(1, 100, shape=Shape(late=0, duplicates=0)), 3)]
    assert values[2] == b'{"id": 1, "email": "A", "subject": "A", "sent": 1000, "date": "2021-12-01 13:00:00"}'


def test_a_domain_without_a_model() -> None:
    for name in ("trains", "shaping.x", "../runner", ""):
        with pytest.raises(UnknownDomain):
            workload(name)
