"""`onefold produce`: events to an input topic."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from onefold.cli import asking
from onefold.config.errors import UserError
from onefold.config.settings import Settings, load
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate import foreign, pipelines, producing
from onefold.operate.progress import StageProgress

# If a topic gets less than 1/SHARE_MIN of a pipeline's generated events, the topic counts as without a generator.
SHARE_MIN = 1024


def command(
    topic: Annotated[str, typer.Argument(help="An input topic, as runner.updates.")],
    file: Annotated[Path | None, typer.Option(help="JSON lines to send; standard input if not given.")] = None,
    count: Annotated[
        int, typer.Option(min=0, help="Generate this many events for the topic instead of reading lines.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="The same seed generates the same events.")] = 1,
    rate: Annotated[float, typer.Option(min=0.0, help="Events a second; 0 is as fast as possible.")] = 0.0,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before --count writes to a Kafka that the stack did not start.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Write events to an input topic in transactions, each keyed by its schema's key.

    A line that does not match the schema is sent unchanged, without a key. The processor turns it into a dead letter with
    the reason.

    Example: onefold produce runner.updates --count 1000 --seed 7
    """
    settings = load()
    topology = pipelines.topology_with_input(topic)
    if count and (others := [name for name in foreign.servers(settings) if name.startswith("Kafka")]):
        what = f"{count:,} generated records, some without keys or against their schema, into topic {topic}"
        asking.confirm(f"`onefold produce` writes {what} of {others[0]}", yes, as_json)
    source = _Generated(topology, topic, count, seed) if count else _Lines(topology, topic, file, settings)
    progress, sent = StageProgress(), 0
    for sent in producing.produce(source, settings.usable_client(), rate):
        progress.say(f"events written: {sent:,}")
    progress.clear()
    if as_json:
        typer.echo(json.dumps({"topic": topic, "events": sent, "refused_by_contract": source.refused}))
        return
    typer.echo(f"{sent:,} events written to {topic}.")
    if source.refused:
        typer.echo(f"{source.refused:,} of them break the schema and will be dead letters; the first: {source.reason}")


class _Generated:
    """Exactly `count` generated events for a topic. Raises UserError if the pipeline has no generator for the topic."""

    refused, reason = 0, ""

    def __init__(self, topology: Any, topic: str, count: int, seed: int) -> None:
        self._topology, self._topic, self._count, self._seed = topology, topic, count, seed
        workload = pipelines.workload(topology.name)
        # Some pipelines also generate events with the present time, for measurements of latency.
        self._generate = getattr(workload, "live", workload.generate)

    def __iter__(self) -> Iterator[producing.Message]:
        made = islice(self._of_topic(self._enough()), self._count)
        return ((event.topic, event.key, event.value) for event in made)

    def _of_topic(self, total: int) -> Iterator[Any]:
        return (event for event in self._generate(self._seed, total) if event.topic == self._topic)

    def _enough(self) -> int:
        """The number of events to generate for all topics, so that `count` are for the topic. The generator has no parameter
        for the topic.
        """
        total = self._count
        if len(self._topology.inputs) == 1:
            return total
        while (found := sum(1 for _ in islice(self._of_topic(total), self._count))) < self._count:
            if total >= SHARE_MIN * self._count:
                raise UserError(
                    Code.NO_GENERATOR,
                    f"the generator of {self._topology.name} makes too few events for {self._topic}: {found:,} in {total:,}",
                )
            total *= 2
        return total


class _Lines:
    """Lines of a file or of standard input, with keys by the schema."""

    def __init__(self, topology: Any, topic: str, file: Path | None, settings: Settings) -> None:
        from onefold.processor import loading
        from onefold.processor.core.errors import Rejected
        from onefold.processor.core.values import Record

        self.refused, self.reason = 0, ""
        self._topology, self._topic, self._file = topology, topic, file
        self._codec = loading.codec_of(topology, settings.schema_registry_url)
        self._record, self._rejected = Record, Rejected

    def __iter__(self) -> Iterator[producing.Message | None]:
        if self._file is None:
            yield from self._messages(producing.lines_as_they_come(cast("io.BufferedReader", sys.stdin.buffer)))
            return
        try:
            with self._file.open("rb") as lines:
                yield from self._messages(lines)
        except OSError as error:
            raise UserError(
                Code.FILE_UNUSABLE, f"{self._file} cannot be read: {error.strerror}", exit_code=USAGE
            ) from None

    def _messages(self, lines: Iterable[bytes | None]) -> Iterator[producing.Message | None]:
        for line in lines:
            if line is producing.PAUSE:
                yield producing.PAUSE
            elif value := line.rstrip(b"\r\n"):
                yield self._topic, self._key(value), value

    def _key(self, value: bytes) -> bytes | None:
        try:
            decoded = self._codec.decode(self._record(self._topic, 0, 0, None, value))
            return str(self._topology.keys[self._topic](decoded)).encode()
        except self._rejected as error:
            self.refused += 1
            self.reason = self.reason or str(error)
            return None
