"""A continuous verifier with real servers, run step by step in the test's own thread."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

from onefold.processor.core.topology import Topology
from onefold.verify.audit.auditor import Auditor, AuditStatus
from onefold.verify.verdict import INVALID, UNKNOWN, VALID, Finding

#: The promised time from a commit to the reported mismatch.
NAMED_WITHIN_S = 5.0


class Audited:
    """A pipeline with a continuous verifier that has not started.

    Args:
        folder: for files of the test.
        more: arguments of the verifier.
    """

    def __init__(self, topology: Topology, client: dict[str, str], dsn: str, folder: Path, **more: Any) -> None:
        self.topology = topology
        self.client = client
        self.dsn = dsn
        self.folder = folder
        self.auditor = Auditor(topology.name, client=client, dsn=dsn, **more)

    def closing(self) -> AbstractContextManager[Auditor]:
        """Close the verifier at the end."""
        return closing(self.auditor)

    def audit(
        self, enough: Callable[[AuditStatus], bool], seconds: float = 30, between: Callable[[], object] = lambda: None
    ) -> AuditStatus:
        """Run the verifier until `enough` holds. `between` is called after each turn before that."""
        deadline = time.monotonic() + seconds

        def late(pause: float) -> bool:
            between()
            return time.monotonic() > deadline

        found = self.auditor.run(lambda standing: None, late, enough)
        assert enough(found), found
        return found

    def valid(self, judged: int, between: Callable[[], object] = lambda: None) -> None:
        """Run until the verifier has compared `judged` output records, and all rows in a new cycle."""
        self.audit(lambda standing: standing.judged >= judged and standing.waiting == 0, between=between)
        self.auditor.standing.cycle_s = None
        # Between turns a test may take longer than the verifier ever waits, so the verifier first has to catch up.
        standing = self.audit(
            lambda standing: standing.cycle_s is not None and standing.outcome != UNKNOWN, between=between
        )
        assert (standing.outcome, standing.findings) == (VALID, [])

    def named(self) -> Finding:
        """The next mismatch, which must be found within NAMED_WITHIN_S."""
        before = len(self.auditor.standing.findings)
        standing = self.audit(lambda standing: len(standing.findings) > before, NAMED_WITHIN_S)
        assert standing.outcome == INVALID
        return standing.findings[before]
