"""Verify a domain: work out from the input log what must exist, and compare it with what does.

    1. Read inputs, outputs, dead letters and the processor's progress, from the beginning, or from where an earlier verdict
       has proved them (`checkpoints`), to the end (`log`).
    2. Wait, for a bounded time, until the pipeline has drained: the processor has read every input record, no
       transaction is open, and the sink has landed every output record.
    3. In one snapshot of the database compare every row, both ways (`tables`); compare outputs, dead letters and
       repartitioned copies (`outputs`).
    4. When nothing moved meanwhile, the verdict is what holds: valid or invalid. Else compare again.

Unknown, and never valid, is: what cannot be read whole, a log whose beginning is gone, a topic that was recreated,
an open transaction, a pipeline that does not drain, input that keeps coming while rows differ, and any error in here.
"""

import time
from pathlib import Path
from typing import Any

from onefold.error_codes import Code
from onefold.verify.checkpoints import Checkpoints
from onefold.verify.judge import Judge, Progress, seldom
from onefold.verify.loading import UnknownDomain
from onefold.verify.verdict import UNKNOWN, VALID, CannotTell, Verdict


@seldom()
def verify(
    domain: str,
    *,
    client: dict[str, Any],
    dsn: str,
    timeout_s: float = 60.0,
    progress: Progress = lambda what, records: None,
    schema_registry_url: str | None = None,
    objects: str | None = None,
    objects_endpoint: str | None = None,
    checkpoints: Path | None = None,
    from_start: bool = False,
) -> Verdict:
    """Judge one domain.

    Args:
        domain: such as `runner`.
        client: librdkafka settings that reach the broker, `bootstrap.servers` at least.
        dsn: of the database.
        timeout_s: how long to wait for the pipeline to drain, once all that is there has been read.
        progress: called with what is going on, and how many records were read.
        schema_registry_url: where to look up the schemas of inputs in the Confluent wire format.
        objects: where the object store is, as `file:///folder` or `s3://bucket/prefix`; only for domains whose workers make
            objects.
        objects_endpoint: where the server of that bucket is; None: Amazon's.
        checkpoints: the folder of what was proved before, which is read on from, and in which what is proved now is kept;
            None: everything is read, and nothing is kept.
        from_start: read everything all the same.
    """
    started = time.monotonic()
    judge: Judge | None = None
    verdict = Verdict(domain, UNKNOWN, "")
    try:
        kept = Checkpoints(checkpoints, domain) if checkpoints else None
        made = objects or "", objects_endpoint
        judge = Judge(domain, client, dsn, progress, schema_registry_url, made, kept=kept)
        if not from_start:
            judge.go_on(verdict)
        judge.run(verdict, timeout_s)
        if verdict.outcome == VALID:
            verdict.note = judge.keep() or _uncompared(verdict)
    except (CannotTell, UnknownDomain) as reason:
        verdict.outcome, verdict.reason, verdict.code = UNKNOWN, str(reason), str(reason.code)
    except Exception as error:  # noqa: BLE001 - a checker that fails, however it does, has proved nothing
        verdict.outcome, verdict.code = UNKNOWN, str(Code.NO_VERDICT)
        verdict.reason = f"the check itself failed: {type(error).__name__}: {error}"
    finally:
        if judge is not None:
            judge.close()
        verdict.seconds = round(time.monotonic() - started, 3)
    return verdict


def _uncompared(verdict: Verdict) -> str:
    if not verdict.uncompared:
        return ""
    return (
        f"{verdict.uncompared:,} output records were not compared one by one: their rows as of that time are not known. "
        f"In the model of {verdict.domain}, hold rows in TrackedRows, set them in apply(), and name columns that add up in adds"
    )
