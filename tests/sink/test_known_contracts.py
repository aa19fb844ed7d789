"""Whose records of an unknown contract are set aside: a stranger's, and nobody's of whom that is not known."""

from collections.abc import Mapping

import pytest

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused, Retriable
from onefold.schema_history import HEADER_BYTES, SINGLE_OBJECT
from onefold.spark_sink.contracts import Domain, StagedRecord
from onefold.spark_sink.landing.known_schemas import refuse_written
from onefold.spark_sink.landing.protocols import KafkaRecord
from onefold.spark_sink.landing.staging_tables import Opened
from tests.support.coded import raises

KNOWN = SINGLE_OBJECT + b"12345678"
OTHER = SINGLE_OBJECT + b"87654321"
DOMAIN = Domain("d", {"d.out": StagedRecord("d.Out", "{}", KNOWN, (), ("id",))}, {})


class Log:
    """One partition whose records have these headers; `asked` counts who was asked for."""

    def __init__(self, headers: Mapping[int, set[str]]) -> None:
        self._headers = headers
        self.asked = 0

    def record_from(self, topic: str, partition: int, offset: int) -> KafkaRecord | None:
        self.asked += 1
        later = [at for at in self._headers if at >= offset]
        return KafkaRecord(min(later), None, OTHER, 0, frozenset(self._headers[min(later)])) if later else None


def opened(*offsets: int, header: bytes = OTHER) -> list[Opened]:
    return [Opened("d.out", 0, offset, header) for offset in offsets]


def test_strangers_stop_nobody() -> None:
    assert len(KNOWN) == HEADER_BYTES
    log = Log({4: set(), 5: {"trace"}})
    refuse_written(DOMAIN, [*opened(4, 5), *opened(6, 7, header=KNOWN)], log)
    assert log.asked == 2, "of a contract that is known nobody is asked: its body is at fault"


def test_a_processors_record_behind_those_of_a_stranger_is_found() -> None:
    log = Log({4: set(), 5: set(), 6: {"onefold-source"}})
    with raises(Refused, Code.SCHEMA_UNKNOWN, "d.out/0", "3837363534333231"):
        refuse_written(DOMAIN, opened(4, 5, 6), log)


@pytest.mark.parametrize("there", [{9: {"onefold-source"}}, {}], ids=["another one", "none"])
def test_a_record_that_kafka_does_not_have_any_more_is_nobodys(there: dict[int, set[str]]) -> None:
    """The query begins anew, and sees what there is."""
    with raises(Retriable, Code.RECORDS_DELETED, "d.out/0@4"):
        refuse_written(DOMAIN, opened(4), Log(there))


def test_very_many_are_for_a_person() -> None:
    """Whoever they are from: to ask for each would take as long as nothing lands."""
    log = Log({offset: set() for offset in range(2_000)})
    refuse_written(DOMAIN, opened(*range(1_000)), log)
    with raises(Refused, Code.SCHEMA_UNKNOWN, "d.out/0", "1,000", "1000"):
        refuse_written(DOMAIN, opened(*range(2_000)), log)
    assert log.asked == 2_000
