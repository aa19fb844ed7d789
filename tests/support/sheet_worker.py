"""A process that makes one snapshot and says what it took: started by tests with a bound on its memory."""

import json
import resource
import sys
import time
from pathlib import Path


def main(dsn: str, folder: str, sheet: str, entry: str, limit_mb: str, work: str) -> None:
    """Bound this process, then import, connect, and do the job; or only the first two. Prints JSON: seconds and MB."""
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
        if work == "whole":  # as it must not be done
            kept = [store.get(name) for name in store.ids("payloads/")]
            results = [{"size": sum(map(len, kept))}]
    status = Path("/proc/self/status").read_text(encoding="utf-8") if Path("/proc/self/status").exists() else ""
    peak = {name: int(line.split()[1]) // 1024 for line in status.splitlines() for name in ("VmPeak", "VmHWM")
            if line.startswith(name)}  # fmt: skip
    print(json.dumps({"seconds": time.monotonic() - began, "results": results, **peak}))  # noqa: T201  what its parent reads


if __name__ == "__main__":
    main(*sys.argv[1:])
