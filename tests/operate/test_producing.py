"""Lines of a pipe are sent as they come, not when five thousand are together."""

import os
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from onefold import kafka_client
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED, UNAVAILABLE
from onefold.operate import producing
from tests.support.coded import raises

ROW = ("topic", None, b"value")


def test_what_a_pipe_holds_is_followed_by_a_pause_and_what_is_cut_off_waits_for_its_rest() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stream:
        lines = producing.lines_as_they_come(stream)
        os.write(writer, b"one\ntwo\nthr")
        assert [next(lines), next(lines), next(lines)] == [b"one", b"two", producing.PAUSE]
        os.write(writer, b"ee\n\nlast")
        os.close(writer)
        # The writer has gone: the end of the pipe is there to be read, so there is no pause before it.
        assert list(lines) == [b"three", b"", b"last"]


def test_a_file_is_read_to_its_end_without_a_pause(tmp_path: Path) -> None:
    lines = [b"%d" % number for number in range(50_000)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    with (tmp_path / "lines").open("rb") as stream:
        assert list(producing.lines_as_they_come(stream)) == lines


def test_a_batch_ends_when_it_is_full_at_a_pause_and_at_the_end() -> None:
    given = [ROW, ROW, ROW, producing.PAUSE, producing.PAUSE, ROW, producing.PAUSE, ROW]
    assert [len(batch) for batch in producing.batches(iter(given), 2)] == [2, 1, 1, 1]
    assert list(producing.batches(iter([producing.PAUSE]), 2)) == []


def test_a_kafka_that_does_not_answer_is_one_sentence_without_its_password() -> None:
    with raises(UserError, Code.KAFKA_SILENT, "127.0.0.1:9") as caught:
        next(producing.produce([ROW], {"bootstrap.servers": "127.0.0.1:9"}, start_s=0.2))
    assert caught.value.exit_code == UNAVAILABLE
    with pytest.raises(UserError) as caught:
        next(producing.produce([ROW], {"bootstrap.servers": "plaintext://ann:secret@127.0.0.1:9"}, start_s=0.2))
    assert caught.value.message.startswith("an address of Kafka has an account in front of its host")
    assert "secret" not in caught.value.as_text()
    assert caught.value.exit_code == REFUSED


@pytest.mark.parametrize(
    ("code", "ends", "says"),
    [
        (
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            REFUSED,
            "no right to write with the transactional ids onefold-produce-",
        ),
        (KafkaError.NOT_COORDINATOR, UNAVAILABLE, "gave no transaction within 15 s: "),
    ],
)
def test_a_refused_transaction_is_no_silent_kafka(
    code: int, ends: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def init_transactions(self, timeout: float) -> None:
            raise KafkaException(KafkaError(code, retriable=code == KafkaError.NOT_COORDINATOR))

    monkeypatch.setattr(kafka_client, "producer", lambda settings, **more: Refusing())
    with pytest.raises(UserError, match=says) as caught:
        next(producing.produce([ROW], {"bootstrap.servers": "127.0.0.1:9"}))
    assert caught.value.exit_code == ends
