"""The sentences of important errors, whole: what failed, on which object, and the next command.

Other tests assert the code and the objects (tests/support/coded.py): a sentence that is worded anew is changed here.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from onefold.cli.main import run
from onefold.config.errors import of_postgres
from onefold.error_codes import Code, CodedError
from onefold.exit_codes import USAGE
from onefold.processor.core.abc import Identity
from onefold.processor.core.decision import Standing, begin
from onefold.processor.core.stored import RESETTING, check_format
from onefold.processor.runtime.changelog import Progress
from onefold.spark_sink.kafka import client as sink_client
from onefold.spark_sink.landing import identity
from tests.support.coded import raises
from tests.support.rooms import ROOT

READ = Progress(topic_ids={"orders.placed": "id-1"}, offsets_next={"orders.placed": 10})
PROJECT = ROOT / "src" / "onefold" / "onefold.toml"
RESET = "See `onefold docs reset`"


def checked(topic_id: str, start: int, end: int) -> Callable[[], object]:
    return lambda: READ.checked({"orders.placed": Identity(topic_id, start, end)})


@pytest.mark.parametrize(
    ("cause", "code", "sentence"),
    [
        (checked("id-2", 0, 20), Code.TOPIC_RECREATED,
         ("topic orders.placed was deleted and created again (id id-1 then, id-2 now): its records are not the ones behind the "
         f"stored state. {RESET}")),
        (checked("id-1", 0, 9), Code.RECORDS_LOST,
         "topic orders.placed ends at offset 9, but 10 was reached before: the log lost records"),
        (checked("id-1", 11, 20), Code.RECORDS_DELETED,
         "topic orders.placed starts at offset 11, but 10 comes next: records were deleted unread"),
        (lambda: begin(Identity("log-2", 0, 5), Standing("log-1", 3, None)), Code.DECISIONS_LOST,
         ("the decision log was deleted and created again, or an earlier version let tasks share it (log-1 then, log-2 now): the "
         "log does not have the next decision")),
        (lambda: begin(Identity("log-1", 4, 5), Standing("log-1", 3, None)), Code.DECISIONS_LOST,
         f"the decision log starts at offset 4, but 3 comes next: decisions were deleted unread. {RESET}"),
        (lambda: check_format(RESETTING, "orders.changelog"), Code.RESET_INCOMPLETE,
         "orders.changelog is of a reset that is incomplete: run `onefold reset` of the pipeline again"),
        (lambda: check_format({"version": 99}, "orders.changelog"), Code.NEWER_VERSION,
         ("orders.changelog was written by a newer Onefold, in format 99, and this one knows formats up to 2: start the newer "
         "one again. See `onefold docs upgrade`")),
        (lambda: identity.same_topics(cast(Any, SimpleNamespace(ids=lambda names: {"orders.out": "id-2"})),
                                      {"orders.out": "id-1"}), Code.TOPIC_RECREATED,
         ("topic orders.out was deleted and recreated (id id-2, Postgres holds records of id-1): its offsets belong to other "
         "records now; see `onefold docs operating`")),
        (lambda: sink_client.translate({"acks": "1"}, {}), Code.KAFKA_SETTING_WRONG,
         "the Kafka setting 'acks' is Onefold's own or unknown, and cannot be set"),
        (lambda: sink_client.translate({"ssl.ca.location": "probe"}, {}), Code.KAFKA_SETTING_WRONG,
         ("the Kafka setting 'ssl.ca.location' cannot be translated for the sink: set "
         "ONEFOLD_SPARK_KAFKA_SSL_TRUSTSTORE_LOCATION to the value for Kafka's Java client")),
    ],
)  # fmt: skip
def test_an_error_of_a_service_has_one_sentence(cause: Callable[[], object], code: Code, sentence: str) -> None:
    with raises(CodedError, code) as caught:
        cause()
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        ("sheets open budget --range A0", Code.ARGUMENT_WRONG, "--range A0 is no range of cells\n  Write it like A1:F20.\n"),
        ("rebuild runner --since 2999-01-01", Code.ARGUMENT_WRONG,
         "2999-01-01 is still to come\n  Write a time that has passed.\n"),
        ("dead-letters list runner --since soon", Code.ARGUMENT_WRONG,
         "'soon' is no time\n  Write it as 2026-11-23, 2026-11-23T12:00, or as 90s, 15m, 2h, 3d ago.\n"),
        ("dead-letters replay runner", Code.ARGUMENT_WRONG,
         "it is not said which\n  Name places, filter with --reason, --key and so on, or say --all.\n"),
        ("verify nobody", Code.PIPELINE_UNKNOWN,
         "there is no pipeline nobody\n  There are: averages, bank, campaigns, runner, sheets, trades.\n"),
        ("jobs requeue runner --since 2026-01-01", Code.NO_JOBS,
         "runner has no jobs\n  Declare some in DECLARED: `onefold docs jobs`.\n"),
        ("docs nowhere", Code.NAME_UNKNOWN, "there is no page 'nowhere'\n  The pages are: "),
    ],
)  # fmt: skip
def test_an_error_of_a_command_has_a_code_a_sentence_and_a_hint(
    words: str, code: Code, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == USAGE
    told = capsys.readouterr().err.replace(str(PROJECT), "DECLARED")
    assert told.startswith(f"error {code}: {printed}")


def test_what_postgresql_says_follows_what_was_not_done() -> None:
    error = of_postgres(psycopg.OperationalError("connection refused\nmore"), "the tables could not be made")
    assert error.as_text() == "error OF-301: the tables could not be made: connection refused"
    assert error.as_json() == (
        '{"error": "the tables could not be made: connection refused", "hint": "", "code": "OF-301", "exit_code": 69}'
    )
