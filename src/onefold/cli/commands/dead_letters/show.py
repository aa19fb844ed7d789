"""`onefold dead-letters show`: the details of a dead letter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onefold.cli.commands.dead_letters import common
from onefold.config.errors import first_line
from onefold.config.settings import load
from onefold.printable import printable

if TYPE_CHECKING:
    from onefold.operate.dead_letters.letters import DeadLetters, Letter, Original
    from onefold.processor.io.replays import ReplayReceipt

# The first byte of Avro's single-object encoding; magic byte and schema id of Confluent's.
_SINGLE_OBJECT_BYTE, _CONFLUENT_HEADER_BYTES = 0xC3, 5
# Displayed bytes of a value without --all: enough to recognise the format.
BYTES_SHOWN = 512
_LINE_BYTES = 16


def command(
    place: Annotated[str, typer.Argument(help="TOPIC/PARTITION/OFFSET of the dead letter, or of its source.")],
    show_all: Annotated[bool, typer.Option("--all", help="Print every byte, not only the first ones.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, with every byte in hex.")] = False,
) -> None:
    """Show a dead letter: its source, the reason, its headers, and the original bytes in hex and as text, decoded as far as
    possible. Bytes that the dead letter lacks are read from its source.

    Example: onefold dead-letters show runner.updates.dead/0/12
    """
    from onefold.operate.dead_letters.letters import of_place
    from onefold.operate.dead_letters.letters import place as place_of

    at = place_of(place)
    letters = of_place(at, load())
    letter = letters.one(at)
    found = letters.originals([letter])[letter.place]
    receipt = letters.receipt(letter.source, letters.receipts())
    if as_json:
        typer.echo(json.dumps(_data(letters, letter, found, receipt), indent=1, default=str))
        return
    typer.echo("\n".join(_lines(letters, letter, found, receipt, None if show_all else BYTES_SHOWN)))


def _held(letter: Letter, found: Original | str) -> Original:
    """The original record, else the parts of the record in the dead letter."""
    from onefold.operate.dead_letters.letters import Original

    return Original(letter.key, letter.value, None, found) if isinstance(found, str) else found


def _spelling(value: bytes | None) -> str:
    """The probable encoding of the value, in a few words."""
    if not value:
        return "nothing" if value is None else "no bytes"
    if value[0] == _SINGLE_OBJECT_BYTE:
        return f"Avro single-object encoding, schema fingerprint {value[2:10].hex()}"
    if value[0] == 0 and len(value) >= _CONFLUENT_HEADER_BYTES:
        return f"Confluent's wire format, schema id {int.from_bytes(value[1:_CONFLUENT_HEADER_BYTES], 'big')}"
    try:
        return f"JSON, {type(json.loads(value)).__name__}"
    except (ValueError, RecursionError) as error:
        return f"no JSON ({first_line(error)}), and neither Avro nor Confluent's format by its first byte"


def _when(receipt: ReplayReceipt) -> datetime:
    return datetime.fromtimestamp(receipt.at_ms / 1000, UTC)


def _headers(original: Original) -> list[tuple[str, bytes | None]]:
    return list(original.envelope.headers() or []) if original.envelope is not None else []


def _data(letters: DeadLetters, letter: Letter, found: Original | str, receipt: ReplayReceipt | None) -> dict[str, Any]:
    original = _held(letter, found)
    value, problem = letters.decoded(letter, original.value)
    return {
        **common.as_data(letter, receipt),
        "sha256": letter.sha256,
        "sent_ms": original.envelope.timestamp()[1] if original.envelope is not None else None,
        "headers": [[name, None if held is None else held.hex()] for name, held in _headers(original)],
        "key_hex": None if original.key is None else original.key.hex(),
        "value_hex": None if original.value is None else original.value.hex(),
        "lacks": original.lacks,
        "spelling": _spelling(original.value),
        "decoded": None if problem else str(value),
        "refused_now": problem,
        "says": letters.plainly(letter, original.value) if problem else None,
    }


def _lines(
    letters: DeadLetters, letter: Letter, found: Original | str, receipt: ReplayReceipt | None, shown: int | None
) -> Iterator[str]:
    original = _held(letter, found)
    yield f"dead letter  {letter.place}"
    yield f"source       {letter.source or 'its headers do not say'}"
    yield f"rejected     {letter.at:%Y-%m-%d %H:%M:%S} UTC"
    if receipt is not None:
        yield f"since then   {common.wrapped(str(receipt), ' ' * 13).strip()}, {_when(receipt):%Y-%m-%d %H:%M:%S} UTC"
    yield f"reason       {common.wrapped(letter.reason, ' ' * 13).strip()}"
    yield f"key          {common.key_text(original.key).removeprefix('key ')}"
    for name, held in _headers(original):
        yield f"header       {printable(name)} = {printable((held or b'').decode(errors='backslashreplace'))}"
    if original.lacks:
        yield f"lacks        {common.wrapped(original.lacks, ' ' * 13).strip()}"
    value, problem = letters.decoded(letter, original.value)
    yield f"spelled as   {_spelling(original.value)}"
    now = f"refused: {problem}" if problem else f"admitted: {value}"
    yield f"schema now   {common.wrapped(now, ' ' * 13).strip()}"
    if problem and (says := letters.plainly(letter, original.value)):
        cut = says if shown is None or len(says) <= shown else f"{says[:shown]}…"
        yield f"it says      {common.wrapped(cut, ' ' * 13, broken=True).strip()}"
    held = original.value or b""
    yield f"value        {letter.length:,} bytes" + ("" if original.value is not None else ", null")
    yield from _dump(held if shown is None else held[:shown])
    if shown is not None and len(held) > shown:
        yield f"… {len(held) - shown:,} more bytes; --all prints them."


def _dump(data: bytes) -> Iterator[str]:
    """A hex dump with 16 bytes in a line of at most 75 columns."""
    for at in range(0, len(data), _LINE_BYTES):
        line = data[at : at + _LINE_BYTES]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"{at:08x}  {line.hex(' '):47}  {text}"
