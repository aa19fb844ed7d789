"""`onefold produce`: events to an input topic."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from console import pipelines, producing
from console.errors import USAGE, UserError
from console.progress import Progress
from console.settings import Settings, load


def command(
    topic: Annotated[str, typer.Argument(help="An input topic, as runner.updates.")],
    file: Annotated[Path | None, typer.Option(help="JSON lines to send; standard input if not given.")] = None,
    count: Annotated[int, typer.Option(min=0, help="Generate this many events instead of reading lines.")] = 0,
    seed: Annotated[int, typer.Option(help="The same seed generates the same events.")] = 1,
    rate: Annotated[float, typer.Option(min=0.0, help="Events a second; 0 is as fast as possible.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Write events to an input topic in transactions, each keyed by its contract's key.

    A line that breaks the contract is sent as it is, without a key: the processor makes a dead letter of it and says
    why.

    Example: onefold produce runner.updates --count 1000 --seed 7
    """
    settings = load()
    topology = pipelines.topology_with_input(topic)
    source = _Generated(topology.name, topic, count, seed) if count else _Lines(topology, topic, file, settings)
    progress, sent = Progress(), 0
    for sent in producing.produce(source, settings.usable_client(), rate):
        progress.say(f"events written: {sent:,}")
    progress.clear()
    if as_json:
        typer.echo(json.dumps({"topic": topic, "events": sent, "refused_by_contract": source.refused}))
        return
    typer.echo(f"{sent:,} events written to {topic}.")
    if source.refused:
        typer.echo(
            f"{source.refused:,} of them break the contract and will be dead letters; the first: {source.reason}"
        )


class _Generated:
    """The events of a domain's workload for one topic."""

    refused, reason = 0, ""

    def __init__(self, domain: str, topic: str, count: int, seed: int) -> None:
        workload: Any = importlib.import_module(f"proof.workloads.{domain}")
        # Some domains have input that says the present time, so that its way can be timed.
        self._inputs = getattr(workload, "live", workload.generate)(seed, count)
        self._topic = topic

    def __iter__(self) -> Iterator[producing.Message]:
        return ((made.topic, made.key, made.value) for made in self._inputs if made.topic == self._topic)


class _Lines:
    """Lines of a file or of standard input, keyed."""

    def __init__(self, topology: Any, topic: str, file: Path | None, settings: Settings) -> None:
        from processor import service
        from processor.core.errors import Rejected
        from processor.core.values import Record

        self.refused, self.reason = 0, ""
        self._topology, self._topic, self._file = topology, topic, file
        self._codec = service.codec_of(topology, settings.schema_registry_url)
        self._record, self._rejected = Record, Rejected

    def __iter__(self) -> Iterator[producing.Message | None]:
        if self._file is None:
            yield from self._messages(producing.lines_as_they_come(sys.stdin.buffer))
            return
        try:
            with self._file.open("rb") as lines:
                yield from self._messages(lines)
        except OSError as error:
            raise UserError(f"{self._file} can not be read: {error.strerror}", exit_code=USAGE) from None

    def _messages(self, lines: Iterable[bytes | None]) -> Iterator[producing.Message | None]:
        for line in lines:
            if line is producing.PAUSE:
                yield producing.PAUSE
            elif value := line.rstrip(b"\r\n"):
                yield self._topic, self._key(value), value

    def _key(self, value: bytes) -> bytes | None:
        try:
            decoded = self._codec.decode(self._record(self._topic, 0, 0, None, value))
            return str(self._topology.key(decoded)).encode()
        except self._rejected as error:
            self.refused += 1
            self.reason = self.reason or str(error)
            return None
