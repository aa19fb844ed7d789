"""Parked keys on the simulated log: an operator who replays and drops the dead letters of `desk`, and the verifier."""

import itertools
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from onefold.processor.core.parking import Ticket
from onefold.processor.core.values import Headers
from onefold.processor.testing.log import Entry
from onefold.testing import TopologyDriver
from onefold.verify import expect, matching, outputs
from onefold.verify.contracts import contract_of
from onefold.verify.expect import Expected, Workload
from onefold.verify.parks import ticket_of
from onefold.verify.record import Source, source_of
from onefold.verify.replays import Receipts, ReceiptTurn
from onefold.verify.verdict import Finding
from tests.support.desk import WORKLOAD, schemas, write_schemas
from tests.support.judged import judged


def write_contracts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a schema file for each topic, and give the same schemas to the verifier."""
    write_schemas(folder)
    found = {topic: contract_of(schema) for topic, schema in schemas().items()}
    for module in (expect, matching, outputs):
        monkeypatch.setattr(module, "contracts", lambda domain=None: found)
    return folder


class Letter(NamedTuple):
    """A dead letter of the record at `source`. `ticket`: None if the key is not parked."""

    source: Source
    entry: Entry
    headers: dict[str, bytes | None]
    ticket: Ticket | None

    @property
    def is_drop(self) -> bool:
        """Whether the letter's record is a drop that came before its turn."""
        return (self.entry.key or b"").startswith(b"onefold-dropped/")


class Operator:
    """Replays and drops dead letters as `onefold dead-letters` does, each once, with receipts.

    Args:
        driver: of a pipeline on its log.
    """

    def __init__(self, driver: TopologyDriver) -> None:
        self.log, self.partitions = driver.log, driver.partitions
        self.dead = driver.topology.dead.values()
        self.receipts: dict[Source, bool | Source | ReceiptTurn] = {}

    def letters(self) -> list[Letter]:
        """Open dead letters in order of arrival."""
        found = []
        for topic, partition in itertools.product(self.dead, range(self.partitions)):
            for _, entry in self.log.read(topic, partition, 0)[0]:
                headers = dict(entry.headers)
                source = source_of(headers["onefold-source"])
                assert source is not None
                ticket = Ticket.decode(headers.get("onefold-parked"))
                found.append(Letter(source, entry, headers, ticket))
        return [letter for letter in found if letter.source not in self.receipts]

    def parked(self) -> dict[str, list[Letter]]:
        """Dead letters of each parked key, in the order of their tickets."""
        found = defaultdict[str, list[Letter]](list)
        for letter in self.letters():
            if letter.ticket is not None:
                found[letter.ticket.key].append(letter)
        return {key: sorted(letters, key=lambda one: one.ticket or ()) for key, letters in found.items()}

    def replay(self, letters: Iterable[Letter], receipt: Letter | None = None) -> None:
        """Append the records to their partitions; a letter about a drop becomes a drop again.

        Args:
            receipt: a different letter for the receipt.
        """
        for letter in letters:
            if letter.is_drop:
                self.drop(letter)
                continue
            self._end(receipt or letter, dropped=False)
            key, value, (topic, partition, _) = letter.entry.key, letter.entry.value, letter.source
            self.log.append(topic, key, value, partition=partition, headers=_headers(letter))

    def drop(self, letter: Letter, receipt: Letter | None = None) -> None:
        """Drop the letter's record for good. `receipt`: as in `replay`."""
        self._end(receipt or letter, dropped=True)
        if letter.ticket is not None:
            key, (topic, partition, _) = f"onefold-dropped/{letter.source}".encode(), letter.source
            headers = [*_headers(letter), ("onefold-dropped", b"somebody")]
            self.log.append(topic, key, b"", partition=partition, headers=headers)

    def _end(self, letter: Letter, *, dropped: bool) -> None:
        ticket = ticket_of(letter.headers.get("onefold-parked"))
        self.receipts[letter.source] = dropped if ticket is None else ReceiptTurn(dropped, ticket)


def _headers(letter: Letter) -> Headers:
    names = ["onefold-pipeline", "onefold-parked"] if letter.ticket else ["onefold-pipeline"]
    return [("onefold-replays", str(letter.source).encode()), *((name, letter.headers[name]) for name in names)]


def verdict(driver: TopologyDriver, receipts: Receipts, work: Workload | None = None) -> tuple[list[Finding], Expected]:
    """Mismatches and expected records by the verifier."""
    return judged(work or WORKLOAD, driver, receipts=receipts)


def kinds(findings: Iterable[Finding]) -> set[str]:
    """Kinds of the mismatches."""
    return {finding.kind for finding in findings}
