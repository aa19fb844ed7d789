"""Where an auditor begins: in the middle of the work, where results lie already of what the processor does not say yet it has."""

from contextlib import closing
from functools import partial
from itertools import count

import pytest

from onefold.verify.audit.auditor import Auditor
from onefold.verify.placement import partition_of
from onefold.workloads import campaigns
from onefold.workloads.shaping import Input
from tests.support.stage import PARTITIONS, Stage

ONE = 5_000_000
place_of = partial(partition_of, partitions=PARTITIONS)
#: In the same partition.
OTHER = next(one for one in count(ONE + 1) if place_of(str(one)) == place_of(str(ONE)))


def send(stage: Stage, campaign: int, day: int) -> None:
    """A record, and what comes of it."""
    value = b'{"id": %d, "email": "A", "subject": "s", "sent": 7, "date": "2021-12-%02d 12:00:00"}' % (campaign, day)
    stage.play([Input(campaigns.TOPIC, b"%d" % campaign, value)])


def test_what_lies_behind_a_result_that_is_too_early_is_read_behind_it(
    bootstrap_servers: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be taken for what came before, and here for what is right: the sources of a row's results go up then."""
    stage = Stage(bootstrap_servers, database, campaigns.WORKLOAD)
    totals = stage.workload.outputs["campaigns.totals"]
    send(stage, OTHER, 1)
    send(stage, ONE, 1)
    _, between = stage.expected.model.rows[totals.name][ONE,]
    with monkeypatch.context() as untold:
        untold.setattr(stage, "report_progress", lambda: None)
        untold.setattr(stage, "_fill_tables", lambda: None)
        send(stage, OTHER, 2)
    doubled = stage.write(totals, (OTHER,), between)
    stage.flush()
    with closing(Auditor(stage.workload.name, client=stage.client, dsn=stage.dsn)) as auditor:
        found = auditor.run(lambda standing: None, lambda pause: True, lambda standing: True).findings
    assert [(one.kind, one.output, one.key) for one in found] == [("doubled output", doubled, {"id": OTHER})]
