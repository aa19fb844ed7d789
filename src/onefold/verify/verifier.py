"""Verify a pipeline: compute from the input log which rows and records must exist, and compare.

    1. Read inputs, outputs, dead letters and the processor's progress up to the ends (`log`). Start at the beginning, or at the
       checkpoint of an earlier verdict (`checkpoints`).
    2. Wait, for a bounded time, until the pipeline has drained: the processor has read all input records, no transaction is
       open, and the sink has written all output records.
    3. In one snapshot of the database, compare all rows, in both directions (`tables`). Compare outputs, dead letters and
       repartitioned copies (`outputs`).
    4. If nothing changed meanwhile, the verdict is valid or invalid. Otherwise, compare again.

The verdict is unknown, and never valid, if:

    - a topic cannot be read completely, or was recreated, or the log has lost records before they were read;
    - a transaction is open, or the pipeline does not drain;
    - input keeps arriving while rows differ;
    - the verification itself fails.
"""

import time
from pathlib import Path
from typing import Any

from onefold.error_codes import Code
from onefold.verify.checkpoints import Checkpoints
from onefold.verify.judge import Progress, Verifier, seldom
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
    """Verify a pipeline. An error of the verification itself makes the verdict unknown.

    Args:
        domain: the pipeline, such as `runner`.
        client: librdkafka settings that reach the broker, at least `bootstrap.servers`.
        dsn: of the database.
        timeout_s: how long to wait for the pipeline to drain, after all existing records were read.
        progress: called with the present activity, and the number of records read.
        schema_registry_url: the schema registry for inputs in the Confluent wire format.
        objects: the address of the object store, as `file:///folder` or `s3://bucket/prefix`; only for pipelines with objects.
        objects_endpoint: the S3 server; None: Amazon's.
        checkpoints: the folder of the checkpoints to continue from and to add to; None: read everything, and save no
            checkpoint.
        from_start: read everything, in spite of checkpoints.
    """
    started = time.monotonic()
    judge: Verifier | None = None
    verdict = Verdict(domain, UNKNOWN, "")
    try:
        kept = Checkpoints(checkpoints, domain) if checkpoints else None
        made = objects or "", objects_endpoint
        judge = Verifier(domain, client, dsn, progress, schema_registry_url, made, kept=kept)
        if not from_start:
            judge.go_on(verdict)
        judge.run(verdict, timeout_s)
        if verdict.outcome == VALID:
            verdict.note = judge.keep() or _uncompared(verdict)
    except (CannotTell, UnknownDomain) as reason:
        verdict.outcome, verdict.reason, verdict.code = UNKNOWN, str(reason), str(reason.code)
    except Exception as error:  # noqa: BLE001 - a failed verification proves nothing, whatever the error
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
