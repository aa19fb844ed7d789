"""The list of all metrics, and the interface with which services report metrics and health.

The module imports only the standard library, and only `onefold.config.metrics_server` imports Prometheus. A service gets a
`Telemetry`, which discards all values without a metrics server. Services report once per transaction, batch, job or status,
never per record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """The definition of a metric.

    Attributes:
        name: The exposed name. The name of a counter ends in `_total`.
        service: The service with the metric: processor, sink, worker, dashboard or auditor; "" for all services.
        unit: The unit of the value.
        meaning: The help text, a sentence.
        labels: The labels, each with a few values known from the pipeline's declaration, never a record's key.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    service: str
    unit: str
    meaning: str
    labels: tuple[str, ...] = ("domain",)


HEALTHY = "onefold_healthy"
PROGRESS_AT = "onefold_progress_timestamp_seconds"
PAUSED = "onefold_paused"

RECORDS = "onefold_processor_records_total"
DEAD_LETTERS = "onefold_processor_dead_letters_total"
WRITTEN = "onefold_processor_written_total"
TRANSACTIONS = "onefold_processor_transactions_total"
ABORTED = "onefold_processor_aborted_total"
STARTED_OVER = "onefold_processor_restarts_total"
TRANSACTION_S = "onefold_processor_transaction_seconds"
TASKS = "onefold_processor_tasks"
TO_FOLD = "onefold_processor_lag_records"
UNREAD = "onefold_processor_unread_partitions"

BATCHES = "onefold_sink_batches_total"
OFFSETS = "onefold_sink_offsets_total"
ROWS = "onefold_sink_rows_total"
SET_ASIDE = "onefold_sink_set_aside_total"
RETRIES = "onefold_sink_retries_total"
QUERY_STARTS = "onefold_sink_starts_total"
BATCH_S = "onefold_sink_batch_seconds"
STAGE_S = "onefold_sink_stage_seconds_total"
QUERY_RUNS = "onefold_sink_running"
TO_LAND = "onefold_sink_lag_offsets"
EXECUTORS = "onefold_sink_executors"

JOBS = "onefold_worker_jobs_total"
JOB_S = "onefold_worker_job_seconds"
WORKER_WAITS = "onefold_worker_waiting"

LAG_TO_FOLD = "onefold_lag_input_offsets"
LAG_TO_LAND = "onefold_lag_output_offsets"
LAG_EVENTS = "onefold_lag_events"
LAG_S = "onefold_lag_seconds"
HELD_S = "onefold_held_seconds"

AUDIT_READ = "onefold_audit_records_total"
AUDIT_OUTPUTS = "onefold_audit_outputs_total"
AUDIT_ROWS = "onefold_audit_rows_total"
AUDIT_FINDINGS = "onefold_audit_findings"
AUDIT_WAITING = "onefold_audit_waiting_records"
AUDIT_BEHIND_S = "onefold_audit_behind_seconds"
AUDIT_CYCLE_S = "onefold_audit_cycle_seconds"

_PER_QUEUE = ("domain", "queue")

#: All there are. docs/monitoring.md lists them, and a test compares.
METRICS = (
    Metric(HEALTHY, "gauge", "", "0 or 1", "1 when /healthz answers 200, 0 when it answers 503.", ()),
    Metric(PROGRESS_AT, "gauge", "", "unix seconds", "When the service last moved on, or had nothing to do."),
    Metric(PAUSED, "gauge", "", "0 or 1", "1 while the service does nothing, because the pipeline is paused."),
    Metric(RECORDS, "counter", "processor", "records", "Input records that became part of a committed transaction."),
    Metric(DEAD_LETTERS, "counter", "processor", "records", "Of these, the ones that became dead letters."),
    Metric(WRITTEN, "counter", "processor", "records", "Records written to other topics than the changelog."),
    Metric(TRANSACTIONS, "counter", "processor", "transactions", "Transactions committed, or decisions taken over."),
    Metric(ABORTED, "counter", "processor", "transactions", "Transactions aborted; their records come again."),
    Metric(STARTED_OVER, "counter", "processor", "restarts", "Tasks that were opened again after an error."),
    Metric(TRANSACTION_S, "histogram", "processor", "seconds", "From the records of a transaction to its commit."),
    Metric(TASKS, "gauge", "processor", "tasks", "Tasks that this process has now."),
    Metric(TO_FOLD, "gauge", "processor", "offsets", "Input offsets of its tasks that are not processed yet."),
    Metric(
        UNREAD,
        "gauge",
        "processor",
        "partitions",
        "Input partitions that were added since it started: no task reads them.",
    ),
    Metric(BATCHES, "counter", "sink", "batches", "Batches committed to PostgreSQL."),
    Metric(
        OFFSETS,
        "counter",
        "sink",
        "offsets",
        "Offsets written to PostgreSQL, those of markers and aborted records too.",
    ),
    Metric(ROWS, "counter", "sink", "rows", "Rows that merges have inserted, changed or deleted."),
    Metric(SET_ASIDE, "counter", "sink", "rows", "Output records rejected to onefold.rejected, each with its reason."),
    Metric(
        RETRIES, "counter", "sink", "transactions", "Transactions that failed by themselves and were entered again."
    ),
    Metric(QUERY_STARTS, "counter", "sink", "starts", "Starts of the query; after the first, each follows an error."),
    Metric(BATCH_S, "histogram", "sink", "seconds", "From Spark handing a batch over to its commit."),
    Metric(
        STAGE_S,
        "counter",
        "sink",
        "seconds",
        "Duration of a batch's stages: read, claim, copy, merge, commit. A batch may be read while another is written.",
        ("domain", "stage"),
    ),
    Metric(QUERY_RUNS, "gauge", "sink", "0 or 1", "Whether the query runs."),
    Metric(TO_LAND, "gauge", "sink", "offsets", "Committed offsets that this sink has not written yet."),
    Metric(EXECUTORS, "gauge", "sink", "executors", "Executors that Spark has; a local master counts as one.", ()),
    Metric(JOBS, "counter", "worker", "messages", "What became of messages, by outcome.", (*_PER_QUEUE, "outcome")),
    Metric(JOB_S, "histogram", "worker", "seconds", "From taking a message to its outcome.", _PER_QUEUE),
    Metric(WORKER_WAITS, "gauge", "worker", "0 or 1", "Whether it waits for a server or a topic.", _PER_QUEUE),
    Metric(
        LAG_TO_FOLD, "gauge", "dashboard", "offsets", "Input offsets that no processor has processed; NaN: unknown."
    ),
    Metric(LAG_TO_LAND, "gauge", "dashboard", "offsets", "Output offsets that no sink has written; NaN: unknown."),
    Metric(
        LAG_EVENTS,
        "gauge",
        "dashboard",
        "records",
        "Input records to process and output records to write, without markers and aborted records; absent: unknown.",
    ),
    Metric(LAG_S, "gauge", "dashboard", "seconds", "How long ago the oldest of them was sent; absent: unknown."),
    Metric(
        HELD_S,
        "gauge",
        "dashboard",
        "seconds",
        "How long an open transaction has hidden records of its topics, which lag does not see; absent: unknown.",
    ),
    Metric(AUDIT_READ, "counter", "auditor", "records", "Records of all topics that the continuous verifier has read."),
    Metric(AUDIT_OUTPUTS, "counter", "auditor", "records", "Output records that it has compared with its model."),
    Metric(AUDIT_ROWS, "counter", "auditor", "rows", "Rows of tables that it has compared."),
    Metric(
        AUDIT_FINDINGS, "gauge", "auditor", "findings", "What it has found wrong since it was started; 1,000 at most."
    ),
    Metric(
        AUDIT_WAITING,
        "gauge",
        "auditor",
        "records",
        "Input records that it has read, and whose results are not complete.",
    ),
    Metric(
        AUDIT_BEHIND_S,
        "gauge",
        "auditor",
        "seconds",
        "Everything that the processor wrote before so many seconds ago is compared; grows while verification is too slow.",
    ),
    Metric(
        AUDIT_CYCLE_S, "gauge", "auditor", "seconds", "How long it took until every row of the tables had come round."
    ),
)


class Telemetry:
    """The interface for metrics and health. This class discards all values, and a subclass may store them. Thread-safe.

    Attributes:
        listens: Whether the values are stored. If not, a service need not compute values only for metrics.
    """

    listens = False

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add an amount to a counter."""

    def put(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""

    def took(self, name: str, seconds: float, **labels: str) -> None:
        """Add a duration to a histogram."""

    def stands(self, domain: str, part: str, moved_at: float, why: str) -> None:
        """Report the progress of a part of the service, such as a queue; "" for the pipeline as a whole.

        Args:
            moved_at: The time of the last progress, or the last time without pending work, in monotonic seconds.
            why: The reason of a stall, or "".
        """

    def faulty(self, domain: str, why: str) -> None:
        """Report a fault of the pipeline, independent of progress; "" for no fault."""

    def paused(self, domain: str, why: str) -> None:
        """Report a pause of the pipeline, in a sentence; "" for no pause."""


#: The telemetry of a service without a metrics server.
SILENT = Telemetry()


class Health:
    """The health of a service: whether each part has made progress, or had no pending work, within a bound.

    A running process that answers requests may still be stalled. A part without further reports also counts as stalled.

    Args:
        stall_s: The bound in seconds.
        clock: The clock, in monotonic seconds.
    """

    def __init__(self, stall_s: float, clock: Callable[[], float]) -> None:
        self._stall_s = stall_s
        self._clock = clock
        self._began_at = clock()
        self._parts: dict[tuple[str, str], tuple[float, str]] = {}
        self._faulty: dict[str, str] = {}
        self._paused: dict[str, str] = {}

    def stands(self, domain: str, part: str, moved_at: float, why: str) -> None:
        """See `Telemetry`."""
        self._parts[domain, part] = moved_at, why

    def faulty(self, domain: str, why: str) -> None:
        """See `Telemetry`."""
        self._faulty[domain] = why

    def paused(self, domain: str, why: str) -> None:
        """See `Telemetry`. The end of a pause counts as progress of each part, because a paused part makes no progress."""
        if why:
            self._paused[domain] = why
        elif self._paused.pop(domain, ""):
            for part, (_, before) in list(self._parts.items()):
                if part[0] == domain:
                    self._parts[part] = self._clock(), before

    def pauses(self) -> list[str]:
        """A sentence for each paused pipeline."""
        return list(self._paused.values())

    def quiet_s(self) -> dict[str, float]:
        """For each pipeline, the longest time in seconds since the last progress of a part."""
        now = self._clock()
        found: dict[str, float] = {}
        for (domain, _), (moved_at, _) in list(self._parts.items()):
            if domain in self._paused:
                moved_at = now  # a paused pipeline has no pending work
            found[domain] = max(found.get(domain, 0.0), now - moved_at)
        return found

    def trouble(self) -> str:
        """A sentence for each stalled part and each pipeline with a fault; "" without any."""
        now = self._clock()
        parts = list(self._parts.items()) or [(("", ""), (self._began_at, "it has not begun"))]
        sentences = [f"{domain}: {why}" for domain, why in list(self._faulty.items()) if why]
        for (domain, part), (moved_at, why) in parts:
            if domain not in self._paused and now - moved_at > self._stall_s:
                who = " ".join(word for word in (domain, part) if word)
                sentence = f"no progress for {now - moved_at:.0f} s{f': {why}' if why else ''}"
                sentences.append(f"{who}: {sentence}" if who else sentence)
        return "; ".join(sentences)
