"""A process that makes one snapshot and reports its resources, under a memory limit of the test."""

import json
import resource
import sys
import time
from pathlib import Path


def main(dsn: str, folder: str, sheet: str, entry: str, limit_mb: str, work: str) -> None:
    """Limit the memory, import, connect, and do the job if `work` says so. Prints JSON: seconds and MB."""
    limit = int(limit_mb) * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    from onefold.jobs.objects.local import LocalStore
    from tests.support.sheets import SheetLog, all_done, effect

    began = time.monotonic()
    store = LocalStore(Path(folder))
    log = SheetLog(dsn, sheet)
    with effect(dsn, store) as worker:
        job = log.job(int(entry))
        assert worker.before(job, None) == []
        results = [done.result for done in (all_done(worker, [job]) if work == "snapshot" else [])]
        if work == "whole":  # the wrong way, for comparison
            kept = [store.get(name) for name in store.ids("payloads/")]
            results = [{"size": sum(map(len, kept))}]
    status = Path("/proc/self/status").read_text(encoding="utf-8") if Path("/proc/self/status").exists() else ""
    peak = {name: int(line.split()[1]) // 1024 for line in status.splitlines() for name in ("VmPeak", "VmHWM")
            if line.startswith(name)}  # fmt: skip
    print(json.dumps({"seconds": time.monotonic() - began, "results": results, **peak}))  # noqa: T201 read by the parent


if __name__ == "__main__":
    main(*sys.argv[1:])
