"""Lags put together, without a broker."""

import pytest

from onefold.cli.commands import status
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.operate import offsets
from onefold.operate.lag import Lag, disjoint, looked_at
from onefold.processor.core.errors import Forbidden, Refused, Retriable, Unauthenticated
from onefold.processor.io import admin
from onefold.processor.loading import topology_of


def test_a_partition_that_two_pipelines_have_read_unequally_far_is_looked_at_twice() -> None:
    """A consumer has one position in it."""
    one, two, three = {("a", 0): (1, 9), ("b", 0): (0, 5)}, {("a", 0): (4, 9)}, {("a", 0): (1, 9), ("c", 0): (2, 3)}
    assert disjoint([one, two, three]) == [{**one, ("c", 0): (2, 3)}, {("a", 0): (4, 9)}]


def test_what_is_unknown_on_one_side_is_unknown_together() -> None:
    assert (Lag(3, 1.0, 4, 2.0).events, Lag(3, 1.0, 4, 2.0).seconds) == (7, 2.0)
    assert (Lag(3, 1.0).events, Lag(3, 1.0).seconds) == (None, None)
    assert Lag(3, None, 0, 0.0).seconds is None


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (Forbidden(Code.KAFKA_RIGHT, "no right to read runner.changelog"), ("no right to read runner.changelog",)),
        (Unauthenticated(Code.KAFKA_LOGIN, "a wrong password"), ("a wrong password",)),
        (
            Refused(
                Code.TOPIC_RECREATED,
                "the changelog is of a reset that is incomplete: run `onefold reset` of the pipeline again",
            ),
            (),
        ),
        (Retriable(Code.KAFKA_SILENT, "the cluster does not answer"), ()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_what_kafka_refuses_to_the_client_is_a_missing_right(
    monkeypatch: pytest.MonkeyPatch, error: Exception, refused: tuple[str, ...]
) -> None:
    """A changelog that a reset has left, or a newer release has written, needs no ACL."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(admin, "standing", fail)
    topology, settings = topology_of("runner"), Settings(bootstrap_servers="127.0.0.1:9")
    behind = offsets.behind(topology, settings, ask_database=False)
    assert (behind.no_inputs, behind.refused) == (str(error), refused)
    lag = looked_at({"runner": behind}, settings)["runner"]
    assert (*status._refusals({"runner": lag.as_json()}),) == refused
