"""Verification of a pipeline in a stack: on this machine, or in a container if the objects are there."""

from __future__ import annotations

import json
from typing import Any

from onefold.chaos.containers import Containers
from onefold.chaos.nemeses import Stack
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.operate import verdicts
from onefold.verify.loading import workload
from onefold.verify.verdict import Check, Finding, Verdict


def judge(stack: Stack, domain: str, settings: Settings, timeout_s: float) -> Verdict:
    """Verify a pipeline. Raises UserError if the verifier in the container gives no verdict."""
    if isinstance(stack, Containers) and workload(domain).made:
        told = stack.told_by_judge(domain, "--json", "--timeout", str(timeout_s), patience_s=timeout_s)
        try:
            return _read(json.loads(told))
        except (ValueError, TypeError, KeyError):
            raise UserError(
                Code.NO_VERDICT, f"`onefold verify` in the container gave no verdict on {domain}: {told.strip()[-200:]}"
            ) from None
    return verdicts.ask(settings, domain, timeout_s=timeout_s)


def _read(data: dict[str, Any]) -> Verdict:
    """Rebuild a verdict from JSON data."""
    return Verdict(
        data["domain"],
        data["outcome"],
        data["reason"],
        [Check(**check) for check in data["checks"]],
        data["counts"],
        [Finding(**finding) for finding in data["findings"]],
        data["offsets"],
        data["seconds"],
        code=data["code"],
    )
