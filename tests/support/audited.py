"""An auditor beside real parts, which takes its turns in the test's own thread."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

from onefold.processor.core.topology import Topology
from onefold.verify.audit.auditor import Auditor, AuditStatus
from onefold.verify.verdict import INVALID, UNKNOWN, VALID, Finding

#: What an operator is promised, from the commit to the name.
NAMED_WITHIN_S = 5.0


class Audited:
    """A pipeline whose auditor has not begun yet.

    Args:
        folder: for whatever a test keeps.
        more: of the auditor.
    """

    def __init__(self, topology: Topology, client: dict[str, str], dsn: str, folder: Path, **more: Any) -> None:
        self.topology = topology
        self.client = client
        self.dsn = dsn
        self.folder = folder
        self.auditor = Auditor(topology.name, client=client, dsn=dsn, **more)

    def closing(self) -> AbstractContextManager[Auditor]:
        """Closes it in the end."""
        return closing(self.auditor)

    def audit(
        self, enough: Callable[[AuditStatus], bool], seconds: float = 30, between: Callable[[], object] = lambda: None
    ) -> AuditStatus:
        """Turns of the auditor, until it is enough; `between` is called after each that was not."""
        deadline = time.monotonic() + seconds

        def late(pause: float) -> bool:
            between()
            return time.monotonic() > deadline

        found = self.auditor.run(lambda standing: None, late, enough)
        assert enough(found), found
        return found

    def valid(self, judged: int, between: Callable[[], object] = lambda: None) -> None:
        """So many output records were judged, and all rows anew."""
        self.audit(lambda standing: standing.judged >= judged and standing.waiting == 0, between=between)
        self.auditor.standing.cycle_s = None
        # Between turns a test may take longer than an auditor ever waits; then it is behind at first.
        standing = self.audit(
            lambda standing: standing.cycle_s is not None and standing.outcome != UNKNOWN, between=between
        )
        assert (standing.outcome, standing.findings) == (VALID, [])

    def named(self) -> Finding:
        """The first thing that it finds from now on; it has to be soon."""
        before = len(self.auditor.standing.findings)
        standing = self.audit(lambda standing: len(standing.findings) > before, NAMED_WITHIN_S)
        assert standing.outcome == INVALID
        return standing.findings[before]
