"""Replay or drop dead letters: each is replayed or dropped exactly once, with any number of commands and attempts.

    1. Initialise the transactional id of the pipeline's replays. Kafka fences the previous replay or drop command, and aborts
       its open transaction.
    2. Read the receipts up to the high watermark. Leave out letters with a receipt.
    3. In one Kafka transaction write the receipts, and for replayed letters the original records to their inputs.

A crash before the commit leaves no trace; after the commit the receipts exist. A second command at the same time fences the
first between 1 and 3, and reads in 2 the receipts of the first. If Kafka refuses a batch for its size, the command retries in
halves, down to the oversized record. That record stays a dead letter, with a sentence in the report, and the rest is replayed.
Each transaction has a new producer, so a late request of the previous transaction has an old epoch (see `processor.io.kafka`).

The command processes the dead letters of a parked key in the order of their tickets, and in rounds (see `parked`). The drop of
such a letter is also a record in the input, because later events of the key wait for a record with its ticket.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, Producer

from onefold import kafka_client
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.operate import pipelines, producing
from onefold.operate.dead_letters import parked
from onefold.operate.dead_letters.letters import DeadLetters, Letter, Original, Wanted, said
from onefold.operate.record_reader import RecordPlace
from onefold.processor.core.owner import PIPELINE_HEADER, Owner
from onefold.processor.core.values import (
    DROPPED_HEADER,
    OWN_HEADERS,
    PARKED_HEADER,
    REPLAYS_HEADER,
    TIMESTAMP_HEADER,
)
from onefold.processor.io import admin, replays
from onefold.processor.io.kafka_errors import FENCED, LOST_IN_A_CALLBACK
from onefold.processor.io.replays import Dropped
from onefold.processor.io.topics import RECORD_BYTES_MAX

# Per transaction: the records are held in memory, and the transaction must end before its time-out.
RECORDS_MAX, BYTES_MAX = 500, 16 * 1024 * 1024
# For this long the open transaction of a killed command blocks consumers of later records.
TRANSACTION_MS = 30_000
_CALL_S = 15.0
# Error codes of a broker, or of the client itself, for an oversized record.
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)

#: The steps of one transaction, for tests that end a command at a step.
STEPS = ("after_open", "after_receipts", "after_begin", "after_produce", "before_commit", "after_commit")


@dataclass
class Report:
    """The result of a replay or drop.

    Attributes:
        done, before: dead letters that were replayed or dropped now, or earlier.
        lacking: the missing parts of replayed records.
        failed: dead letters that cannot be replayed or dropped, each with one sentence.
        followed: dead letters of parked keys that waited behind these, and were replayed now.
        stalled: why letters of parked keys may still wait, in one sentence; or "".
    """

    done: list[Letter] = field(default_factory=list)
    before: list[Letter] = field(default_factory=list)
    lacking: dict[RecordPlace, str] = field(default_factory=dict)
    failed: dict[RecordPlace, str] = field(default_factory=dict)
    followed: list[Letter] = field(default_factory=list)
    stalled: str = ""

    def add(self, other: Report) -> None:
        """Add the result for more dead letters."""
        self.done += other.done
        self.before += other.before
        self.lacking |= other.lacking
        self.failed |= other.failed
        self.followed += other.followed


#: For a dead letter: the author and reason of its drop; None: replay it.
Decide = Callable[[Letter], Dropped | None]


class _TooLarge(Exception):
    """Kafka refuses a record of a transaction for its size. The message is the name of Kafka's error."""


def replay(
    letters: DeadLetters,
    wanted: Wanted,
    step: Callable[[str], None] = lambda name: None,
    progress: Callable[[int], None] = lambda done: None,
) -> Report:
    """Replay the records of these dead letters: each once, at the end of its original partition.

    Args:
        step: called with the name of each step after the step.
        progress: called with the number of finished dead letters.

    Raises:
        UserError: Kafka refuses the records, or another command replays or drops at the same time. The next replay leaves out
            the committed dead letters.
    """
    return _each_once(letters, wanted, None, step, progress)


def drop(
    letters: DeadLetters,
    wanted: Wanted,
    dropped: Dropped,
    step: Callable[[str], None] = lambda name: None,
    progress: Callable[[int], None] = lambda done: None,
) -> Report:
    """Drop these dead letters: their records never take effect. Remaining arguments and errors: see `replay`."""
    return _each_once(letters, wanted, dropped, step, progress)


def _each_once(
    letters: DeadLetters,
    wanted: Wanted,
    dropped: Dropped | None,
    step: Callable[[str], None],
    progress: Callable[[int], None],
) -> Report:
    report = Report()
    chosen = in_order(letters, wanted, report, dropped)
    if not chosen:
        return report
    with said(letters.client):
        admin.create_replays(letters.topology, letters.client, letters.replication)
        receipts = replays.Receipts(letters.client, letters.topology.replays)

    def send(some: Iterable[Letter], decide: Decide) -> None:
        for batch in _batches(some):
            with _fenced(letters.name), said(letters.client):
                _in_parts(letters, batch, receipts, report, decide, step)
            progress(len(report.done) + len(report.followed) + len(report.before) + len(report.failed))

    send((letter for letter in chosen if letter.ticket is None), lambda letter: dropped)
    if of_parked := [letter for letter in chosen if letter.ticket is not None]:
        _release(letters, wanted, of_parked, dropped, report, send)
    return report


def _release(
    letters: DeadLetters,
    wanted: Wanted,
    chosen: Sequence[Letter],
    dropped: Dropped | None,
    report: Report,
    send: Callable[[Iterable[Letter], Decide], None],
) -> None:
    """Replay or drop dead letters of parked keys, and replay the letters that wait behind them, in rounds (see `parked`)."""
    parks = {park for letter in chosen if (park := parked.park_of(letter)) is not None}
    partitions = {letter.source.partition for letter in chosen if letter.source is not None}
    with _fenced(letters.name), said(letters.client):
        _open(letters.client, letters.name)  # the open transaction of a killed command may hold receipts
    waiting = parked.open_letters(letters, parks)
    still = {letter.place for letter in waiting}
    report.before += [letter for letter in chosen if letter.place not in still]
    chosen = [letter for letter in chosen if letter.place in still]
    numbers = dict[parked.Park, int]()  # of the heads' tickets in the last round
    while True:
        found = parked.next_round(waiting, {letter.place for letter in chosen})
        if gone := parked.not_called(found.heads, numbers):
            _tell_gone(gone, report)
            parks -= gone.keys()
            waiting = [letter for letter in waiting if parked.park_of(letter) in parks]
            found = parked.next_round(waiting, {letter.place for letter in chosen})
        _tell_blocked(found, chosen, report)
        dropping = _dropping(found, wanted, chosen) if dropped is not None else set()
        before = len(report.done)
        send(found.letters, lambda letter: dropped if letter.place in dropping else None)  # noqa: B023 - called in `send` only
        heads = {letter.place for letter in chosen if letter.ticket is not None and letter.ticket.refused} | dropping
        report.followed += [letter for letter in report.done[before:] if letter.place not in heads]
        report.done[before:] = [letter for letter in report.done[before:] if letter.place in heads]
        failed = {parked.park_of(letter) for letter in found.letters if letter.place in report.failed}
        parks -= {*found.blocked, *failed}
        if not parks and not found.letters:
            return
        if not parked.has_taken(letters, partitions):
            report.stalled = (
                f"the processor of {letters.name} has not taken them yet, and further events of their keys may wait: start it, "
                f"and run this command again"
            )
            return
        waiting, chosen = parked.open_letters(letters, parks), []
        if not waiting:
            return


def _dropping(found: parked.Round, wanted: Wanted, chosen: Iterable[Letter]) -> set[RecordPlace]:
    """The places of the letters to drop: for a parked key the rejected letter. Letters that wait behind a rejected letter are
    replayed, except letters that the user names.
    """
    places = {letter.place for letter in chosen}
    return {
        letter.place
        for letter in found.letters
        if letter.place in places
        and ((letter.ticket is not None and letter.ticket.refused) or {letter.place, letter.source} & wanted.places)
    }


def _tell_blocked(found: parked.Round, chosen: Iterable[Letter], report: Report) -> None:
    for park, head in found.blocked.items():
        behind = [letter for letter in chosen if parked.park_of(letter) == park]
        for letter in behind:
            report.failed[letter.place] = f"it waits behind {head.place}: replay or drop that one"
        if not behind:
            report.failed[head.place] = f"it was rejected again: {head.reason}"


def _tell_gone(gone: Mapping[parked.Park, Letter], report: Report) -> None:
    for head in gone.values():
        report.failed[head.place] = "it waits for a dead letter that is gone: its key is free only after a reset"


def in_order(letters: DeadLetters, wanted: Wanted, report: Report, dropped: Dropped | None = None) -> list[Letter]:
    """The selected letters that can be replayed or dropped, in the order of their source places. Keys, values and reasons are
    left out to save memory, and read again batch by batch.
    """
    chosen = []
    for letter in letters.select(wanted):
        if letter.source is None:
            report.failed[letter.place] = "its headers do not say where it came from"
        elif letter.source.topic == letters.topology.ticks and dropped is None:
            report.failed[letter.place] = "it is a tick: the next one makes up for it, and time does not go back"
        elif letter.source.topic in letters.deleted_by_reset and dropped is not None:
            report.failed[letter.place] = (
                f"a reset deletes {letter.source.topic}, and its records come again and would count: replay this one, or leave it"
            )
        else:
            chosen.append(letter._replace(key=None, value=None, reason=""))
    return sorted(chosen, key=lambda letter: letter.source or letter.place)


def would_be_done(
    letters: DeadLetters, wanted: Wanted, report: Report, dropped: Dropped | None = None
) -> Iterator[tuple[Letter, Original]]:
    """The dead letters that `replay` or `drop` would process now, with their records, by partition number. The report gets the
    rest. Memory use is as for a replay.
    """
    chosen = in_order(letters, wanted, report, dropped)
    of_parked = [letter for letter in chosen if letter.ticket is not None]
    chosen = [letter for letter in chosen if letter.ticket is None]
    if of_parked:
        parks = {park for letter in of_parked if (park := parked.park_of(letter)) is not None}
        waiting = parked.open_letters(letters, parks)
        still = {letter.place for letter in waiting}
        report.before += [letter for letter in of_parked if letter.place not in still]
        of_parked = [letter for letter in of_parked if letter.place in still]
        found = parked.next_round(waiting, {letter.place for letter in of_parked})
        _tell_blocked(found, of_parked, report)
        dropping = _dropping(found, wanted, of_parked)
        chosen += [letter for letter in found.letters if dropped is None or letter.place in dropping]
        if dropped is not None:
            report.followed += [letter for letter in found.letters if letter.place not in dropping]
    chosen.sort(key=lambda letter: letter.source.partition if letter.source else 0)
    receipts, last = letters.receipts(), None
    for batch in _batches(chosen):
        found_now = _to_do(letters, batch, receipts, report, lambda letter: dropped, last)
        yield from ((letter, original) for letter, original, by in found_now if by is dropped)
        last = batch[-1].source


def _to_do(
    letters: DeadLetters,
    batch: Sequence[Letter],
    receipts: replays.Receipts | None,
    report: Report,
    decide: Decide,
    last: RecordPlace | None = None,
) -> list[tuple[Letter, Original, Dropped | None]]:
    """The letters of a batch that are open and can be replayed or dropped, each with its record and, for a drop, its author.
    The report gets the rest.

    Args:
        last: source of the last letter in the previous batch, if the previous batch wrote no receipts.
    """
    waiting, seen, others = [], {last}, pipelines.topics_of_others(letters.name)
    for letter in batch:
        if letters.receipt(letter.source, receipts) is not None or letter.source in seen:
            report.before.append(letter)
        else:
            waiting.append(letter)
            seen.add(letter.source)
    # After a reset another letter may have the same place: compare source and digest.
    same = {letter.place: (letter.source, letter.sha256) for letter in waiting}
    originals = letters.originals(one for one in letters.again(waiting) if same[one.place] == (one.source, one.sha256))
    found = []
    for letter in waiting:
        original = originals.get(letter.place, "the dead letter itself is gone")
        if letter.source is not None and letter.source.topic not in letters.topic_ids:
            original = f"Kafka has no topic {letter.source.topic}"
        dropped = decide(letter)
        if dropped is None and letter.ticket is not None and isinstance(original, Original):
            dropped = _dropped_before(letters, original, receipts)
        is_replayed = dropped is None
        if is_replayed and letter.source is not None and letter.source.topic in others:
            original = (
                f"{letter.source.topic} is a topic of {others[letter.source.topic]} too, where it would count once more"
            )
        if is_replayed and isinstance(original, Original) and original.is_cut:
            original = original.lacks
        if isinstance(original, str):
            report.failed[letter.place] = original
        else:
            found.append((letter, original, dropped))
    return found


def _dropped_before(letters: DeadLetters, original: Original, receipts: replays.Receipts | None) -> Dropped | None:
    """The author of the drop, if the rejected record is the record of a drop that arrived before its turn."""
    key, _, source = (original.key or b"").decode(errors="replace").partition("/")
    if original.value or key != DROPPED_HEADER:
        return None
    receipt = letters.receipt(RecordPlace.found(source), receipts)
    return None if receipt is None else receipt.dropped


def _in_parts(
    letters: DeadLetters,
    batch: Sequence[Letter],
    receipts: replays.Receipts,
    report: Report,
    decide: Decide,
    step: Callable[[str], None],
) -> None:
    """Process a batch in one transaction, or in several if a record or the batch is too large; in order."""
    left = [batch]
    while left:
        part = left.pop()
        try:
            report.add(_together(letters, part, receipts, decide, step))
        except _TooLarge as error:
            half = len(part) // 2
            if half:
                left += [part[half:], part[:half]]
                continue
            topic = part[0].source.topic if part[0].source else ""
            what = f"{topic} does not take it with the headers of a replay"
            if decide(part[0]) is not None:
                what = f"{letters.topology.replays} does not take its receipt"
            report.failed[part[0].place] = (
                f"{what} ({error}): raise its max.message.bytes; more than {RECORD_BYTES_MAX:,} bytes are never written"
            )


def _together(
    letters: DeadLetters,
    batch: Sequence[Letter],
    receipts: replays.Receipts,
    decide: Decide,
    step: Callable[[str], None],
) -> Report:
    """Process a batch in one transaction."""
    report = Report()
    producer = _open(letters.client, letters.name)
    try:
        step("after_open")
        receipts.read_on()
        step("after_receipts")
        found = _to_do(letters, batch, receipts, report, decide)
        if found:
            _write(producer, letters, found, step)
    except BaseException:
        with contextlib.suppress(KafkaException, *LOST_IN_A_CALLBACK):
            producer.abort_transaction(_CALL_S)
        raise
    report.done += [letter for letter, _, _ in found]
    report.lacking |= {
        letter.place: original.lacks for letter, original, dropped in found if original.lacks and dropped is None
    }
    return report


def _write(
    producer: Producer,
    letters: DeadLetters,
    found: Iterable[tuple[Letter, Original, Dropped | None]],
    step: Callable[[str], None],
) -> None:
    producer.begin_transaction()
    step("after_begin")
    now_ms = time.time_ns() // 1_000_000
    with _sized(producer) as answered:
        for letter, original, dropped in found:
            source = letter.source
            assert source is not None, "a letter without one is not chosen"
            copied, ticket = _copied(source, original, letters.owner), letter.ticket
            signature = (letter.signature or b"").decode(errors="replace")
            turn = None if ticket is None else replays.ParkedTurn(signature, ticket.encode().decode())
            receipt = replays.ReplayReceipt(
                source, letters.topic_ids[source.topic], str(letter.place), now_ms, dropped, copied, turn
            )
            key, value = receipt.encode()
            if dropped is None:
                headers = _headers(letter, original, letters.owner)
                _add(producer, source.topic, source.partition, original.key, original.value, headers, answered)
            elif ticket is not None:
                headers = [*_signed(letter, letters.owner), (DROPPED_HEADER, dropped.by.encode())]
                # A separate key: in a compacted topic the record must not replace the last event of the key.
                own_key = f"{DROPPED_HEADER}/{source}".encode()
                _add(producer, source.topic, source.partition, own_key, b"", headers, answered)
            _add(producer, letters.topology.replays, 0, key, value, [], answered)
        step("after_produce")
        with contextlib.suppress(*LOST_IN_A_CALLBACK):  # the commit reports the error
            producer.flush(_CALL_S)
        step("before_commit")
        producing.commit(producer)
    step("after_commit")


@contextlib.contextmanager
def _sized(producer: Producer) -> Iterator[Callable[[KafkaError | None, object], None]]:
    """Raises `_TooLarge` for a failure by an oversized record. A call may report only a failed record, without the cause: so
    the context manager gives a delivery callback that collects the error of each record.
    """
    answers: list[KafkaError] = []

    def answered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            answers.append(error)

    try:
        yield answered
    except KafkaException as failure:
        with contextlib.suppress(KafkaException, *LOST_IN_A_CALLBACK):
            producer.purge()  # the batch is discarded, and the callbacks report earlier failures now
            producer.flush(_CALL_S)
        for error in (failure.args[0], *answers):
            if error.code() in _TOO_LARGE:
                raise _TooLarge(error.name()) from failure
        raise


def _copied(source: RecordPlace, original: Original, owner: Owner) -> replays.Copied | None:
    """For a repartitioned record, the original place for the receipt. None: the record is no copy, or retention has removed its
    headers.
    """
    headers = original.envelope.headers() if original.envelope is not None else None
    found = owner.copied(source.topic, headers or ())
    place = RecordPlace.found(found[0].decode(errors="replace")) if found is not None else None
    return None if found is None or place is None else replays.Copied(place, found[1].decode(errors="replace"))


def _signed(letter: Letter, owner: Owner) -> list[tuple[str, bytes | None]]:
    """Headers with the source place and a signature. For a parked key: also the ticket, with the signature of the pipeline that
    issued it.
    """
    place = (REPLAYS_HEADER, str(letter.source).encode())
    if letter.ticket is None:
        return [place, (PIPELINE_HEADER, owner.signature)]
    return [place, (PIPELINE_HEADER, letter.signature), (PARKED_HEADER, letter.ticket.encode())]


def _headers(letter: Letter, original: Original, owner: Owner) -> list[tuple[str, bytes | None]]:
    """The headers of the sender, the source place, and the time of sending: the timestamp of a replayed record is the time of
    the replay.
    """
    headers, source = _signed(letter, owner), letter.source
    assert source is not None, "a letter without one is not chosen"
    if original.envelope is None:
        return headers
    found = original.envelope.headers() or []
    sent = next((value for name, value in reversed(found) if name == TIMESTAMP_HEADER), None)
    if sent is None or not owner.wrote(source.topic, found):
        sent = b"%d" % original.envelope.timestamp()[1]
    headers.append((TIMESTAMP_HEADER, sent))
    return [*((name, value) for name, value in found if not name.startswith(OWN_HEADERS)), *headers]


def _batches(letters: Iterable[Letter]) -> Iterator[list[Letter]]:
    batch: list[Letter] = []
    size = 0
    for letter in letters:
        if batch and (len(batch) == RECORDS_MAX or size + letter.length > BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(letter)
        size += letter.length
    if batch:
        yield batch


def _open(client: Mapping[str, str], domain: str) -> Producer:
    settings: dict[str, str | int] = {
        **client,
        "transactional.id": f"onefold-replay-{domain}",
        "transaction.timeout.ms": TRANSACTION_MS,
        "delivery.timeout.ms": TRANSACTION_MS // 2,
        "message.max.bytes": RECORD_BYTES_MAX,
        "compression.type": "lz4",
    }
    producer = kafka_client.producer(settings, logger=logging.getLogger("onefold.replay"))
    producer.init_transactions(_CALL_S * 2)
    return producer


def _add(
    producer: Producer,
    topic: str,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    answered: Callable[[KafkaError | None, object], None],
) -> None:
    add: Callable[..., None] = producer.produce  # the stub rejects a list of headers with bytes values only
    while True:
        try:
            add(topic, value, key, partition, answered, headers=headers)
            return
        except BufferError:
            with contextlib.suppress(*LOST_IN_A_CALLBACK):  # the next record reports the error
                producer.poll(0.1)


@contextlib.contextmanager
def _fenced(domain: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        cause = error.__context__
        if isinstance(cause, KafkaException) and cause.args[0].code() in FENCED:
            raise UserError(
                Code.COMMAND_RUNNING,
                f"another replay or drop of {domain} has begun; what this one had under way was taken back",
                "Run this command again when the other one has ended: no dead letter is replayed or dropped twice.",
            ) from None
        raise
